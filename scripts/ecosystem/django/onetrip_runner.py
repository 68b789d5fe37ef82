"""Runs Django's tests and writes a line for each to ECOSYSTEM_RESULTS: its name, what became of it, the error's last line."""

import os
import traceback
import unittest

from django.test.runner import DiscoverRunner


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lines = open(os.environ["ECOSYSTEM_RESULTS"], "a", buffering=1, encoding="utf-8")

    def write(self, test, outcome, error=None):
        name = test.id() if hasattr(test, "id") else str(test)
        said = "".join(traceback.format_exception_only(error[0], error[1])) if error else ""
        self.lines.write(f"{' '.join(name.split())}\t{outcome}\t{' '.join(said.split())[:300]}\n")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.write(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.write(test, "skipped")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.write(test, "ok")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.write(test, "failed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.write(test, "failed", err)

    def addError(self, test, err):
        super().addError(test, err)
        self.write(test, "failed", err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.write(test, "failed", err)


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result
