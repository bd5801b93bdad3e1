"""The report of a run: one HTML file that opens anywhere. `evopipe.report.page.page(folder, params)` makes it."""
