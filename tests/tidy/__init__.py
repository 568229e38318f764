# SPDX-License-Identifier: Apache-2.0
"""The rules for the sources, one module per kind. tests/tidy.py applies all of them."""
