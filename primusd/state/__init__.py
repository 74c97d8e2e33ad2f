"""How the state stays true: journal, election, snapshots, archive, and the stores behind them."""
