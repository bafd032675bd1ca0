"""Row tracking: which row ids files carry, and what a publish has to do about them."""
