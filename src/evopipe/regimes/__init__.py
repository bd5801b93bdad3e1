"""What members live on: regimes of experience, each as the protocol in `run.regime` asks."""
