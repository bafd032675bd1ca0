"""The manifests of a branch as such: fewer and larger ones, which say the same."""
