# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through the pipe of its DevTools protocol."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time


def chromium():
    """Returns the path of a Chromium; None without one."""
    names = ["chromium", "chromium-browser", "google-chrome", "chrome"]
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """Opens pages in one tab. Each wait has a deadline."""

    def __init__(self, program, profile, timeout=30):
        self._timeout = timeout
        self._number = 0
        self._received = b""
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        commands, self._to = moved_up(os.pipe())
        self._from, answers = moved_up(os.pipe())
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers), start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]

        self._session = self._call("Target.attachToTarget", targetId=target,
                                   flatten=True)["sessionId"]
        self._call("Page.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends all processes of the browser, which otherwise still write into the profile."""
        os.close(self._to)  # Chromium then ends by itself.
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def set_width(self, width, height=800):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=False)

    def open(self, url):
        failure = self._call("Page.navigate", url=url).get("errorText")
        if failure:
            raise RuntimeError(f"{url}: {failure}")
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def evaluate(self, expression):
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True,
                            awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Waits until a JavaScript expression is true, and returns its value."""
        end = time.monotonic() + self._timeout
        while not (value := self.evaluate(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"not true after {self._timeout} s: {expression}")
            time.sleep(0.05)
        return value

    def _call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass  # An event.
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self):
        while b"\0" not in self._received:
            if not select.select([self._from], [], [], self._timeout)[0]:
                raise TimeoutError(f"no answer from Chromium in {self._timeout} s")
            if not (more := os.read(self._from, 1 << 16)):
                raise RuntimeError(f"Chromium ended with exit code {self._process.wait()}")
            self._received += more
        message, self._received = self._received.split(b"\0", 1)
        return json.loads(message)


def moved_up(descriptors):
    """The same pipe with descriptors from 10 on, as bash overwrites 3 and 4."""
    moved = []
    for descriptor in descriptors:
        moved.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(descriptor)
    return moved
