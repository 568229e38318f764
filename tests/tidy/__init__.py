# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, a module for each kind; tests/tidy.py applies them all."""
