"""A search over hyperparameters on this machine: trials are runs, Optuna proposes and prunes."""
