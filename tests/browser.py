"""A real Chromium without a window, and what it says of a page.

It is driven through the chromedriver that is installed beside it, so that nothing is downloaded. Every request that a
page makes is seen.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

__all__ = ["Browser", "open_browser"]

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_INSTALL = (
    "there is no Chromium with its chromedriver: apt-get install --no-install-recommends chromium chromium-driver"
)


class Browser:
    """One tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open a file; what an earlier page said is forgotten."""
        self.driver.get("about:blank")
        self._read_log("browser")
        self._read_log("performance")
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self.driver.get(path.absolute().as_uri())

    def command(self, name: str, **arguments: Any) -> Any:
        """Of the browser's own protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def find(self, selector: str) -> WebElement:
        """The first element of a selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        """All elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def read(self, selector: str) -> str:
        """The text of the first element of a selector, as the page holds it."""
        return self.find(selector).get_property("textContent")  # type: ignore[return-value]  # it is a text

    def read_all(self, selector: str) -> list[str]:
        """The texts of all elements of a selector."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return list(self.driver.execute_script(script, selector))

    def evaluate(self, script: str) -> Any:
        """What an expression of JavaScript comes to on the page."""
        return self.driver.execute_script(f"return {script}")

    def list_complaints(self) -> list[str]:
        """What the console says since the page was opened: errors of the script and refusals of the page's policy."""
        return [entry["message"] for entry in self._read_log("browser")]

    def list_requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self._read_log("performance")]
        return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]

    def _read_log(self, name: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.get_log(name)  # type: ignore[no-untyped-call]  # selenium's own
        return entries

    def photograph(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.command("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with a profile of its own.

    Without Chromium the tests that need it are skipped; in CI, where it was to be installed, that is a failure.
    """
    binary, driver = _find(_CHROMIUM), _find(["chromedriver"])

    if binary is None or driver is None:
        if os.environ.get("CI"):
            pytest.fail(_INSTALL)
        pytest.skip(_INSTALL)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})

        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)

        driver_process = webdriver.Chrome(options=options, service=Service(executable_path=driver))

        try:
            yield Browser(driver_process)
        finally:
            driver_process.quit()


def _find(names: Sequence[str]) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)
