"""Some of numba-cuda's own tests: a line for each, with its result.

Usage: numba_tests.py MODULE...: modules of numba.cuda.tests.cudapy. An error of a kernel ends the context,
and with it all later tests of the process.
"""
import sys
import unittest


class Results(unittest.TestResult):
    """Prints what becomes of each test when it is known."""

    def say(self, word, test, reason=""):
        reason = " ".join(str(reason).split())
        name = test.id().removeprefix("numba.cuda.tests.cudapy.")
        # What a test prints may stand before it without a line's end.
        print(f"\nresult: {word} {name} {reason}", flush=True)

    def addSuccess(self, test):
        self.say("pass", test)

    def addExpectedFailure(self, test, error):
        self.say("pass", test, "fails, as it expects")

    def addUnexpectedSuccess(self, test):
        self.say("fail", test, "passes, which it does not expect")

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addFailure(self, test, error):
        self.say("fail", test, error[1])

    def addError(self, test, error):
        # That of pytest, which unittest does not know.
        self.say("skip" if error[0].__name__ == "Skipped" else "fail", test, error[1])

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.say("fail", test, error[1])


def main():
    for module in sys.argv[1:]:
        name = f"numba.cuda.tests.cudapy.{module}"
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(name)
        except BaseException as outcome:  # pytest's, which is no Exception.
            if type(outcome).__name__ != "Skipped":
                raise
            print(f"result: skip {module} {outcome}", flush=True)
            continue
        suite.run(Results())
        print(f"result: end {module}", flush=True)


# Some tests start processes, which import this file.
if __name__ == "__main__":
    main()
