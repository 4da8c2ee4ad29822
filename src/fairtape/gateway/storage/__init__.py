"""What a gateway keeps on disk: accounts, FIX session state, and its order log."""
