"""Chromium without a window, for the tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.processes.harness import wait_until

#: The folder into which tests write screenshots for the documentation; none are made without it.
PICTURES = os.environ.get("PENSTOCK_SCREENSHOTS")


class Browser:
    """One tab of a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open an address, also if it differs from the last one by its fragment only."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def script(self, text: str, *arguments: Any) -> Any:
        """Return the result of a function's body in the page."""
        return self.driver.execute_script(text, *arguments)

    def text(self, css: str) -> str:
        """Return the text of the first element that a selector finds; empty if there is none."""
        return self.script("return document.querySelector(arguments[0])?.textContent ?? ''", css)

    def texts(self, css: str) -> list[str]:
        """Return the texts of all elements that a selector finds."""
        every = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return self.script(every, css)

    def has(self, css: str) -> bool:
        return bool(self.script("return document.querySelector(arguments[0]) !== null", css))

    def wait(self, css: str, text: str = "") -> str:
        """Wait until an element has a text, and return the whole text of the element."""
        found = lambda: text in self.text(css) and self.has(css)  # noqa: E731
        wait_until(found, f"{css} shows {text!r}, and not {self.text(css)!r}")
        return self.text(css)

    def click(self, css: str) -> None:
        """Click an element, when the page has it and it is enabled."""

        def clicked() -> bool:
            for element in self.driver.find_elements(By.CSS_SELECTOR, css):
                try:
                    if element.is_enabled() and element.is_displayed():
                        element.click()
                        return True
                except StaleElementReferenceException:
                    pass  # it was replaced meanwhile
            return False

        wait_until(clicked, f"{css} can be clicked")

    def type(self, css: str, text: str) -> None:
        """Replace the text of an input."""
        self.wait(css)
        element = self.driver.find_element(By.CSS_SELECTOR, css)
        element.clear()
        element.send_keys(text)

    def press(self, keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(keys)

    def order(self, name: str) -> None:
        """Give an order by its button and the question that follows."""
        self.click(f"[data-order={name}]")
        self.click("dialog [data-confirm]")

    def complaints(self) -> list[str]:
        """Return the errors and warnings on the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, name: str, height: int) -> None:
        """Write a screenshot for the documentation, if the tests are to make them."""
        if PICTURES:
            self.driver.set_window_size(1280, height)
            self.script("scrollTo(0, 0)")
            self.driver.save_screenshot(str(Path(PICTURES) / f"{name}.png"))


@contextmanager
def browser(dark: bool = False) -> Iterator[Browser]:
    """Start Chromium, and end it after the block. Skip the test if there is none."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no Chromium with its driver: `make servers` installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"]
    arguments += ["--window-size=1280,900", "--disable-background-networking"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's own sandbox is not for root
    if dark:
        arguments.append("--blink-settings=preferredColorScheme=0")
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
