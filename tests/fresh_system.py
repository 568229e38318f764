# SPDX-License-Identifier: Apache-2.0
"""Fresh systems in folders, made by mmdebstrap from the archive that this host uses.

A test that makes one calls in_own_mounts(): its mounts then vanish with it.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from commands import run, skip

SOURCES = ("sources.list.d/debian.sources", "sources.list.d/ubuntu.sources", "sources.list")
TOOLS = {"mmdebstrap": "mmdebstrap", "unshare": "util-linux"}
# Variables with a file of certificates, such as those of a proxy, which the fresh system lacks.
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


def need_tools(tools):
    """Skips the test unless this host has these programs, from their names to packages."""
    if missing := [name for name in tools if not shutil.which(name)]:
        skip(f"there is no {', '.join(missing)} (packages: "
             f"{', '.join(sorted({tools[name] for name in missing}))})")


def own_release():
    """Returns the distribution and the release of this host, such as ("debian", "bookworm")."""
    lines = pathlib.Path("/etc/os-release").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return tuple(values.get(key, "").strip('"') for key in ("ID", "VERSION_CODENAME"))


def sources(release=None):
    """Returns the text that lists this host's archive, with another release of it if named."""
    etc = pathlib.Path("/etc/apt")
    text = next(etc / name for name in SOURCES if (etc / name).exists()).read_text()
    return text.replace(own_release()[1], release) if release else text


def mmdebstrap(folder, *options, release=None):
    """Makes a system in a folder. Skips the test if the archive cannot be reached."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    listed = folder.parent / f"{folder.name}.sources"
    listed.write_text(sources(release))
    # The system is removed soon, so files need not be synced.
    made = subprocess.run(["mmdebstrap", "--dpkgopt=force-unsafe-io", *options, release or "",
                           folder, listed], text=True, stderr=subprocess.PIPE)
    if made.returncode != 0:
        skip(f"mmdebstrap makes no fresh system: {made.stderr.strip().splitlines()[-1]}")


def in_own_mounts(scratch, tools):
    """Starts this program again, in a mount namespace and with --in-own-mounts, and exits.

    Empties the folder `scratch` first, and removes the folder `system` there at the end.
    """
    if os.geteuid() != 0:
        skip("only root can make a fresh system and install into it")
    need_tools(TOOLS | tools)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    code = subprocess.run(["unshare", "--mount", sys.executable, *sys.argv,
                           "--in-own-mounts"]).returncode
    shutil.rmtree(scratch / "system", ignore_errors=True)
    sys.exit(code)


class System:
    """A folder with a fresh Debian or Ubuntu, in which commands run as if it were the whole host.

    Its mounts are those of this process and vanish with it.
    """

    def __init__(self, root, release=None):
        self.root = root
        mmdebstrap(root, "--variant=apt", "--skip=cleanup/apt", release=release)
        if (resolver := pathlib.Path("/etc/resolv.conf")).exists():
            shutil.copy(resolver, root / "etc")
        self.certificates = {}
        for name in CERTIFICATES:
            file = pathlib.Path(os.environ.get(name, ""))
            if file.is_file():
                copy = root / "etc" / f"{name.lower()}.pem"
                shutil.copy(file, copy)
                self.certificates[name] = f"/etc/{copy.name}"
        run("mount", "-t", "proc", "proc", root / "proc")
        run("mount", "-t", "devpts", "devpts", root / "dev" / "pts")
        run("mount", "-t", "tmpfs", "tmpfs", root / "dev" / "shm")
        self.show("/sys", "sys")

    def show(self, folder, place, writable=False):
        """Mounts a folder of this host, read-only unless asked."""
        inside = self.root / place
        inside.mkdir(exist_ok=True, parents=True)
        run("mount", "--bind", folder, inside)
        if not writable:
            run("mount", "-o", "remount,ro,bind", inside)

    def run(self, *command, fails=False, **added):
        return run("chroot", self.root, *command, fails=fails, DEBIAN_FRONTEND="noninteractive",
                   PATH="/usr/sbin:/usr/bin:/sbin:/bin", **self.certificates, **added)

    def install(self, package, *options):
        shutil.copy(package, self.root / "tmp")
        return self.run("apt-get", "install", "-y", *options, f"/tmp/{package.name}")
