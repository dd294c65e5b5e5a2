"""The paper's translation experiments: `oaxe reproduce main` and the other tables and figures."""
