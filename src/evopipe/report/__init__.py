"""The report of a run: one HTML file that opens anywhere, made by `evopipe.report.page.page(folder, params)`."""
