"""`dlcloud policy`: the IAM policy that its user needs."""

import click

from dlcloud.core.errors import RecipeError


@click.command("policy")
@click.option("--detach", is_flag=True, help="What up --detach needs beside it.")
@click.option("--secrets", is_flag=True, help="What secrets of SSM and Secrets Manager need beside it.")
def command(*, detach: bool, secrets: bool) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else.

    \b
    dlcloud policy > dlcloud.json
    aws iam create-policy --policy-name dlcloud --policy-document file://dlcloud.json
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.resources.texts import template

    if detach and secrets:
        raise RecipeError("--detach and --secrets are two policies", "print and create one after the other")
    name = "iam_policy_detach.json" if detach else "iam_policy_secrets.json" if secrets else "iam_policy.json"
    click.echo(template(name), nl=False)
