"""`dlcloud training`: what an elastic run came to."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("training")
@click.argument("name", required=False, default="")
@output_option
@verbose_option
def command(*, name: str, output: str, verbose: bool) -> int | None:
    """Tell what the elastic run of cluster NAME (default: the newest) came to.

    Its steps and samples, the number of workers over time with the pause of each change, what happened and
    why, what each instance cost, and what the same steps would have cost on demand and fixed.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.elsewhere import passed_on
    from dlcloud.cli.training_flow import print_training

    with Context("training", verbose=verbose) as context:
        status = passed_on(context, name)
        if status is None:
            print_training(context, name, output)
    return status
