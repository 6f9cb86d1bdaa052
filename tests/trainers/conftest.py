# SPDX-License-Identifier: Apache-2.0
"""After a run of the frameworks: the table of what was recognised, as README.md has it."""


def pytest_terminal_summary(terminalreporter):
    rows = [value for reports in terminalreporter.stats.values() for report in reports
            for key, value in getattr(report, "user_properties", ()) if key == "recognition"]
    if rows:
        terminalreporter.write_line("\n| trainer | ranks | recognised as | opens | misses |\n|---|---|---|---|---|")
    for row in rows:
        terminalreporter.write_line("| " + " | ".join(str(value) for value in row.values()) + " |")
