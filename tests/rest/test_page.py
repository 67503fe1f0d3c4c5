"""The page in Chromium, over a server with a job whose events the test makes up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.webdriver.common.keys import Keys

from bench.common.large_job import SUBTASKS, VERTICES, large_figures, large_graph
from tests.processes.harness import wait_until
from tests.rest.browser import Browser, browser
from tests.rest.served import (
    RUNNING,
    TOKENS,
    WORKERS,
    Served,
    lived,
    program,
    restarting,
    served,
    snapshot,
    started,
    status,
)


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture
def one() -> Iterator[Served]:
    with served() as server:
        lived(server)
        yield server


@contextmanager
def shown(tab: Browser, one: Served, path: str = "", token: str = TOKENS.full) -> Iterator[None]:
    """Show a job on the page, and check that the console of the browser stays empty."""
    tab.complaints()
    tab.open(f"http://127.0.0.1:{one.port}/#token={token}")
    tab.wait("#connection", "live")
    tab.script("location.hash = arguments[0]", f"#/jobs/{one.id}{path}")
    tab.wait(".title h1", "words")
    yield
    assert tab.complaints() == []


def test_files_of_the_page_need_no_token_and_say_what_they_may_do(one: Served):
    answer = one.ask("//", token=None)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    again = one.ask("//", token=None, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    for path in ("//page/main.js", "//page/vendor/LICENSE.uplot.txt"):
        assert one.ask(path, token=None).status == 200
    for path in ("//page/../access.py", "//page/index.html", "//page/", "//page/%2e%2e/access.py"):
        assert one.ask(path, token=None).status == 401, path
    assert one.ask("//", token=None, headers={"Host": "elsewhere.example"}).status == 403
    assert one.ask("//", method="POST", token=None).status == 401


def test_the_token_of_the_address_goes_into_the_tab_and_leaves_the_address(
    tab: Browser, one: Served
):
    with shown(tab, one):
        assert TOKENS.full not in tab.driver.current_url
        assert TOKENS.full not in tab.script("return JSON.stringify([...Array(history.length)])")
        assert tab.script("return sessionStorage.getItem('penstock-token')") == TOKENS.full
        assert tab.script("return document.cookie + Object.keys(localStorage)") == ""
        tab.driver.refresh()
        tab.wait(".title h1", "words")


def test_a_wrong_token_is_said_and_another_one_can_be_given(tab: Browser, one: Served):
    tab.open(f"http://127.0.0.1:{one.port}/#token=wrong")
    tab.wait("#token-problem", "the token of the request is wrong")
    tab.type("input[name=token]", TOKENS.read_only)
    tab.press(Keys.ENTER)
    tab.wait("#jobs tbody a", "words")
    tab.complaints()  # Chromium reports each answer 401 there


def test_jobs_are_listed_as_the_api_lists_them(tab: Browser, one: Served):
    with shown(tab, one):
        tab.click(".brand")
        job = one.ask("/jobs/overview").json["jobs"][0]
        tab.wait(f"[data-job='{one.id}']", "words")
        cells = tab.texts("#jobs tbody td")
        assert (cells[1], cells[2]) == (job["jid"][:8], "running")
        assert cells[5:] == [str(job["tasks"]["total"]), str(job["restarts"])]
        tab.click("#jobs tbody a")
        tab.wait("#graph")


def _rate(value: float) -> str:
    """Return a rate as the page writes it."""
    if value >= 999_500:
        return f"{value / 1e6:.2f} M"
    return f"{round(value):,}" if value >= 10 or value == 0 else f"{value:.1f}"


def test_the_graph_has_the_figures_of_the_api_and_changes_with_them(tab: Browser, one: Served):
    with shown(tab, one):
        vertices = one.of_job("").json["vertices"]
        tab.wait("#graph [data-vertex='1']", vertices[1]["name"])
        assert len(tab.texts("#graph .node")) == len(vertices)
        assert len(tab.texts("#graph .edge")) == 1
        figures = one.of_job("/figures").json["vertices"][1]
        total = sum(figures["records-in"])
        tab.wait("[data-vertex='1'] .rate", _rate(total))
        before = tab.text("[data-vertex='1'] .rate")
        one.report(status(1_000_000, 9.0))
        wait_until(
            lambda: tab.text("[data-vertex='1'] .rate") != before, "the page shows the new figures"
        )
        tab.click("[data-vertex='1']")
        tab.wait("#vertex h2", "Upper")
        rows = tab.texts("#subtasks tbody tr")
        assert len(rows) == vertices[1]["parallelism"]
        assert "100 %" in tab.text("#subtasks tbody")
        assert "upper" in tab.text("#vertex")
        tab.press(Keys.ESCAPE)
        wait_until(lambda: not tab.has("#vertex"), "Escape closes the vertex")


def test_the_page_can_be_used_with_the_keyboard(tab: Browser, one: Served):
    with shown(tab, one):
        tab.wait("#graph [data-vertex='0']")
        for _ in range(40):
            tab.press(Keys.TAB)
            if tab.script("return document.activeElement.dataset?.vertex") == "0":
                break
        tab.press(Keys.ENTER)
        tab.wait("#vertex h2", "Words")


def test_watermarks_of_all_vertices_are_shown_at_once(tab: Browser, one: Served):
    last = one.of_job("").json["vertices"][1]["operators"][-1]["uid"]
    figures = status(40)
    figures["subtasks"][last] = figures["subtasks"]["upper"]
    one.report(figures)
    with shown(tab, one, "/watermarks"):
        tab.wait("#watermarks [data-vertex='1']", "Upper")
        assert len(tab.texts("#watermarks tbody tr")) == 2
        # The slower subtask of the second vertex is the first one, and a second behind.
        wait_until(
            lambda: tab.texts("#watermarks [data-vertex='1'] td")[4:] == ["0", "1.0 s"],
            "the spread of the watermarks",
        )


def test_snapshots_are_a_strip_and_one_is_a_gantt_chart(tab: Browser, one: Served):
    with shown(tab, one, "/snapshots"):
        tab.wait("#strip [data-snapshot='5']")
        assert len(tab.texts("#strip a")) == 4
        assert "2 complete · 1 failed · 1 in progress" in tab.text("#counts")
        tab.wait("#snapshot h2", "Snapshot 4")
        tab.click("#strip [data-snapshot='2']")
        tab.wait("#snapshot h2", "Snapshot 2")
        tab.wait("#gantt [data-subtask='1']", "20 ms")
        assert "last" in tab.text("#gantt [data-subtask='1']")
        assert "last" not in tab.text("#gantt [data-subtask='0']")
        words = tab.script(
            "return document.querySelector('#gantt [data-subtask=\"1\"] svg').ariaLabel"
        )
        parts = ("start delay 15 ms", "alignment 3.0 ms", "capture 0.50 ms", "write 2.0 ms")
        assert words == ", ".join(parts)
        assert "60 B" in tab.text("#gantt [data-subtask='1']")
        tab.click("#strip [data-snapshot='3']")
        tab.wait("#snapshot .error", "a task declined")
        one.report(snapshot(5))
        tab.wait("#counts", "3 complete · 1 failed · 0 in progress")


def test_failures_begin_with_the_traceback_of_the_user(tab: Browser, one: Served):
    with shown(tab, one, "/exceptions"):
        tab.wait("#exceptions article")
        article = tab.text("#exceptions article")
        assert article.index("Traceback: it broke") < article.index("Upper")
        assert "Attempt 0" in article
        assert tab.text("#exceptions .record") == "'a'"
        one.report(restarting("it broke <b>again</b>"))
        wait_until(lambda: len(tab.texts("#exceptions article")) == 2, "the new failure is shown")
        # A text of a job is a text, and no HTML.
        assert "<b>again</b>" in tab.text("#exceptions article")


def test_the_size_of_state_is_shown_by_vertex(tab: Browser, one: Served):
    with shown(tab, one, "/state"):
        tab.wait("#state [data-vertex='1']", "150 B")
        assert "100 %" in tab.text("#state tbody tr")
        # The folder of this job does not exist, and the page says so in the place of entries.
        tab.wait("#no-entries", one.of_job("/state").json["errors"][0])
        assert all("409" in text for text in tab.complaints())


def test_buttons_give_orders_after_a_question(tab: Browser, one: Served):
    with shown(tab, one):
        tab.click("[data-order=savepoint]")
        tab.wait("dialog[open]", "Take a savepoint?")
        tab.click("dialog button[type=button]")
        assert one.job.orders == []
        tab.order("savepoint")
        wait_until(lambda: one.job.orders == ["savepoint"], "the order has come")
        one.report(snapshot(6, "savepoint"))
        tab.wait("#order-result", "/jobs/state/checkpoints/000006")
        tab.order("stop")
        wait_until(lambda: one.job.orders[1:] == ["stop"], "the order has come")
        one.report(snapshot(7, "final"), {"event": "finished"})
        tab.wait("#order-result", "stopped with /jobs/state/checkpoints/000007")
        tab.wait(".title .state", "finished")
        wait_until(
            lambda: tab.script("return document.querySelector('[data-order=stop]').disabled"),
            "a job that has ended takes no orders",
        )


def test_orders_that_are_not_allowed_are_disabled_with_a_reason(tab: Browser, one: Served):
    def disabled() -> dict[str, str]:
        found: dict[str, str] = tab.script(
            "return Object.fromEntries([...document.querySelectorAll('[data-order]')]"
            ".filter((one) => one.disabled).map((one) => [one.dataset.order, one.title]))"
        )
        return found

    with shown(tab, one):
        tab.wait("[data-order=stop]")
        wait_until(lambda: set(disabled()) == {"rescale", "restart"}, "these need a service")
        assert disabled()["rescale"] == "the job belongs to the program that runs it"
    with shown(tab, one, token=TOKENS.read_only):
        tab.wait("#rights", "read-only token")
        assert set(disabled().values()) == {"the token is only for reading"}
        assert len(disabled()) == 5


def test_a_job_that_does_not_exist_is_said(tab: Browser, one: Served):
    tab.open(f"http://127.0.0.1:{one.port}/#token={TOKENS.full}")
    tab.wait("#connection", "live")
    tab.script("location.hash = '#/jobs/none'")
    tab.wait("main .error", "there is no job none")
    tab.complaints()  # Chromium reports each answer 404 there


def test_the_page_is_dark_where_the_system_is(one: Served):
    colour = "return getComputedStyle(document.body).backgroundColor"
    with browser(dark=True) as dark, shown(dark, one):
        assert dark.script(colour) == "rgb(20, 24, 27)"


def test_a_job_of_200_vertices_with_32_subtasks_is_shown(tab: Browser):
    begun = {**started(program()), "graph": large_graph()}
    with served() as one:
        one.report(begun, WORKERS, RUNNING, large_figures(0, 0.0))
        with shown(tab, one):
            wait_until(lambda: len(tab.texts("#graph .node")) == VERTICES, "all vertices are shown")
            assert len(tab.texts("#graph .back-edge")) == 1
            before = tab.text("[data-vertex='199'] .rate")
            one.report(large_figures(10**9, 9.0))
            wait_until(
                lambda: tab.text("[data-vertex='199'] .rate") != before, "the figures change"
            )
            tab.script("document.querySelector('[data-vertex=\"199\"]').focus()")
            tab.press(Keys.ENTER)
            wait_until(lambda: len(tab.texts("#subtasks tbody tr")) == SUBTASKS, "its subtasks")
