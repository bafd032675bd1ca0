"""One module for each tab of a table's page: `show(context)` gives its panel."""
