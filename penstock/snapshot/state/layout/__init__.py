"""The layouts of tables, levelled and dense, which capture and write their entries."""
