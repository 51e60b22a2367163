"""Values that AWS keeps: parameters of Systems Manager, and secrets of Secrets Manager."""

from dataclasses import dataclass

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.model.errors import CloudError
from dlcloud.model.secret_source import SecretSource, SourceKind

POLICY_HINT = "what it needs: dlcloud policy secrets"


@dataclass(frozen=True, slots=True)
class SecretValues:
    """Fetches values in one region; an ARN may name another account's."""

    clients: Clients

    def fetch(self, source: SecretSource) -> str:
        """Return the value of a parameter or a secret, decrypted.

        Raises:
            CloudError: It does not exist, is no text, or may not be read.
        """
        try:
            if source.kind is SourceKind.PARAMETER:
                return self._parameter(source.location)
            return self._secret(source.location)
        except CloudError as error:
            error.hint = error.hint or POLICY_HINT
            raise

    def _parameter(self, name: str) -> str:
        with translate_errors(f"reading the parameter {name} (ssm:GetParameter)"):
            answer = self.clients.get("ssm").get_parameter(Name=name, WithDecryption=True)
        return str(answer["Parameter"]["Value"])

    def _secret(self, name: str) -> str:
        with translate_errors(f"reading the secret {name} (secretsmanager:GetSecretValue)"):
            answer = self.clients.get("secretsmanager").get_secret_value(SecretId=name)
        if "SecretString" not in answer:
            raise CloudError(f"reading the secret {name}: it is binary, which no variable can hold")
        return str(answer["SecretString"])
