"""An evaluated model -> a package that serves anywhere, proven to answer as the evaluated one."""
