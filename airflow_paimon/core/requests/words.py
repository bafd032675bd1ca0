"""Constants shared by requests and planners, in a module that is cheap to import in a DAG file."""

from __future__ import annotations

VALUES_TIME = "values-time"
UPDATE_TIME = "update-time"
STRATEGIES = (VALUES_TIME, UPDATE_TIME)
GRAMMAR = (
    "add column NAME TYPE ['COMMENT'] [first | after NAME]",
    "drop column NAME",
    "rename column NAME to NAME",
    "alter column NAME type TYPE",
    "alter column NAME comment 'TEXT'",
    "alter column NAME first | after NAME",
    "set KEY=VALUE",
    "reset KEY",
)
"""The forms of a schema change."""
