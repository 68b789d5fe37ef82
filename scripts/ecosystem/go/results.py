"""Reads what `go test -json` prints, and writes a line for each test to ECOSYSTEM_RESULTS: its name, what became of it, the
first lines that it printed if it failed.  What the tests print goes on to standard output."""

import json
import os
import re
import sys

OUTCOMES = {"pass": "ok", "fail": "failed", "skip": "skipped"}
# A test's own folder, whose number is another one each time.
FOLDER = re.compile(r"(/Test\w*?)\d+/\d{3}\b")
FRAMES = ("===", "---", "FAIL", "ok ", "exit status")


def main():
    said = {}
    failed = set()
    with open(os.environ["ECOSYSTEM_RESULTS"], "w", encoding="utf-8") as results:
        for line in sys.stdin:
            try:
                event = json.loads(line)
            except ValueError:
                sys.stdout.write(line)
                continue
            package, test = event.get("Package", ""), event.get("Test")
            name = package.split("/v5", 1)[-1].lstrip("/") or "."
            if test:
                name += ":" + test
            if event["Action"] in ("output", "build-output"):
                sys.stdout.write(event["Output"])
                if not event["Output"].strip().startswith(FRAMES):
                    said.setdefault(name, []).append(event["Output"])
            elif event["Action"] in OUTCOMES:
                outcome = OUTCOMES[event["Action"]]
                # A package has no line of its own, unless it failed without a test that did, as one that crashed.
                if not test and (outcome != "failed" or package in failed):
                    continue
                if outcome == "failed":
                    failed.add(package)
                text = " ".join("".join(said.pop(name, [])).split())[:300] if outcome == "failed" else ""
                name = FOLDER.sub(r"\1", name).replace("\t", " ").replace("\n", " ")
                results.write(f"{name}\t{outcome}\t{text}\n")


main()
