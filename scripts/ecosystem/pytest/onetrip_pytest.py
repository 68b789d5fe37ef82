"""A plugin of pytest that writes a line for each test to ECOSYSTEM_RESULTS: its name, what became of it, the error's last line."""

import os
import re

# What pytest and the suites put into names and is another thing on each server.
_SERVER = re.compile(r"_?postgresql\+?\w*_1[0-9_]+|:\d{4,5}\b")


def pytest_runtest_logreport(report):
    if report.when != "call" and report.outcome == "passed":
        return
    said = ""
    if report.failed:
        lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
        errors = [line[1:] for line in lines if line.startswith("E ")]
        said = " ".join((" ".join(errors) or lines[-1]).split())[:300]
    outcome = {"passed": "ok", "failed": "failed", "skipped": "skipped"}[report.outcome]
    name = _SERVER.sub("", report.nodeid).replace("\t", " ").replace("\n", " ")
    with open(os.environ["ECOSYSTEM_RESULTS"], "a", encoding="utf-8") as results:
        results.write(f"{name}\t{outcome}\t{said}\n")
