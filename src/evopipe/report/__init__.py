"""The report of a run: one HTML file that opens anywhere. `evopipe.report.html.page(folder)` makes it."""
