"""Physical addresses, the capacity behind them, and the allocators that hand them out."""
