"""Programs that train or evaluate a model. Each recipe is one file with a chz `Config` and
`main(config)`, and runs with `python -m sweeper.recipes.<name> key=value`, without a launcher.
The other files are parts that recipes share."""
