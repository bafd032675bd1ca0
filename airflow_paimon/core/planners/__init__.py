"""Pure planners: they get values and the time, never a store or a clock."""
