"""`dlcloud policy`: the IAM policy that its user needs."""

import click


@click.command("policy")
@click.option("--detach", is_flag=True, help="What up --detach needs beside it.")
def command(*, detach: bool) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else.

    \b
    dlcloud policy > dlcloud.json
    aws iam create-policy --policy-name dlcloud --policy-document file://dlcloud.json
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.resources.texts import template

    click.echo(template("iam_policy_detach.json" if detach else "iam_policy.json"), nl=False)
