import click


@click.command()
@click.option("--learning-rate", default=0.01, help="peak")
@click.option("--epochs", default=3, type=int)
@click.option("--name", default="run {a}")
@click.option("--shuffle/--no-shuffle", default=True)
def main(learning_rate, epochs, name, shuffle):
    pass
