"""An evaluated model -> a package that serves anywhere, proven to compute the same."""
