"""Azure Blob Storage: `az://container/path`, `abfss://container@account.dfs.core.windows.net/path`.

One PUT with `If-None-Match: *` creates a version. Status 409 `BlobAlreadyExists` is `Exists`. Azure has no suffix
ranges, so the end of an object takes a HEAD and a GET.
"""

from __future__ import annotations

from committerd.settings.clouds import AzureSettings
from committerd.stores.cloud import Cloud, certificate_advice, plain

_ROLE = (
    "the credentials may not do this: give them the role Storage Blob Data Contributor on the container, or a "
    "shared access signature that allows reading, writing, deleting and listing there"
)
_WRONG = (
    "the credentials are not valid there: check the account and the settings of the group azure, and the clock of "
    "this machine"
)


def azure_options(settings: AzureSettings) -> dict[str, str | None]:
    """Lance's storage options. A credential of the settings wins over all that the environment has."""
    chosen = {
        "access_key": settings.account_key,
        "sas_token": settings.sas_token,
        "client_secret": settings.client_secret,
        "workload_identity": settings.federated_token_file,
    }
    return {
        "azure_storage_account_name": settings.account_name,
        "azure_storage_account_key": plain(settings.account_key),
        "azure_storage_sas_key": plain(settings.sas_token),
        "azure_storage_client_id": settings.client_id,
        "azure_storage_client_secret": plain(settings.client_secret),
        "azure_storage_tenant_id": settings.tenant_id,
        "azure_storage_authority_host": settings.authority_host,
        "azure_federated_token_file": settings.federated_token_file,
        "azure_storage_endpoint": settings.endpoint_url,
        "azure_credential_type": next((kind for kind, given in chosen.items() if given is not None), None),
    }


AZURE = Cloud(
    service="azure",
    name="Azure Blob Storage",
    form="az://container/path or abfss://container@account.dfs.core.windows.net/path",
    schemes={"az": "az", "azure": "az", "abfss": "abfss"},
    obstore_class="AzureStore",
    defaults=AzureSettings(),
    options=azure_options,
    has_suffix_ranges=False,
    versioning_advice="the account keeps every blob that is replaced or deleted (blob versioning): give it a lifecycle "
    "rule that deletes previous versions, or its size grows with each start, cleanup and compaction; see "
    "docs/stores.md",
    advice={
        **certificate_advice("azure"),
        "AuthenticationFailed": _WRONG,
        "AuthorizationFailure": _WRONG,
        "AuthorizationPermissionMismatch": _ROLE,
        "AuthorizationProtocolMismatch": _ROLE,
        "ContainerNotFound": "create the container, or correct the table's URI or azure.account_name",
        "InvalidAuthenticationInfo": _WRONG,
        "UnauthorizedBlobOverwrite": _ROLE,
        "401": _WRONG,
        "403": _ROLE,
    },
)
