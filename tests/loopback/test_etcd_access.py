"""Access to a real etcd with TLS, with client certificates, and with users."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.core.formation_log import Claim, Claimed, Leadership, LogEntry, Recall, Recalled, Record, Recorded
from fairtape.storage.formation_stores import EtcdAccess, EtcdStore, open_store
from loopback.certificates import Authority
from loopback.commands import PATIENCE, run
from loopback.etcds import Etcd, running_etcd

LEADER = Leadership(leader=1, term=1, renewal=0)
FIRST = LogEntry(loop=0, number=1, term=1, formation=b"first")


@dataclass(frozen=True)
class SecuredStore:
    """The URL of a store that requires certificates, and valid ones."""

    url: str
    access: EtcdAccess


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredStore]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "certificates")
    server, client = authority.identity("server"), authority.identity("client")
    options = [
        *("--cert-file", str(server.certificate), "--key-file", str(server.key)),
        *("--trusted-ca-file", str(authority.certificate), "--client-cert-auth"),
    ]
    with running_etcd(folder, *options) as etcd:
        access = EtcdAccess(ca_file=authority.certificate, cert_file=client.certificate, key_file=client.key)
        yield SecuredStore(f"etcd:https://{etcd.endpoint}/test", access)


def use(url: str, access: EtcdAccess) -> None:
    """Claim and record, and read it back."""
    with closing(open_store(url, access=access, timeout=PATIENCE)) as store:
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        assert store.answer(Record((FIRST,))) == Recorded((FIRST,))
        assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))


def test_a_store_is_used_by_tls_with_certificates_at_both_ends(secured: SecuredStore) -> None:
    use(f"{secured.url}/both", secured.access)


def test_a_cluster_of_an_unknown_authority_is_not_trusted(secured: SecuredStore, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger").certificate
    for ca_file in (None, stranger):
        with pytest.raises(UserError, match=r"the certificate is not trusted \(.*\); name its authority as store.ca_f"):
            open_store(secured.url, access=replace(secured.access, ca_file=ca_file), timeout=PATIENCE)


def test_a_missing_or_foreign_certificate_names_the_fields_to_correct(secured: SecuredStore, tmp_path: Path) -> None:
    other = Authority(tmp_path / "stranger").identity("client")
    for identity in ((None, None), (other.certificate, other.key)):
        access = replace(secured.access, cert_file=identity[0], key_file=identity[1])
        with pytest.raises(UserError, match=r"TLS fails \(.*\); correct store.url, or store.cert_file and store.key"):
            open_store(secured.url, access=access, timeout=PATIENCE)


def test_http_and_https_are_distinguished_in_errors(secured: SecuredStore, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no etcd answers; start one there, .* or correct http or https"):
        open_store(secured.url.replace("https", "http"), timeout=PATIENCE)
    # A plain server may close the connection before it reads the TLS hello, or reject it as a bad request.
    errors = r"(TLS fails \(.*\)|no etcd answers); .*store\.url"
    with running_etcd(tmp_path) as plain, pytest.raises(UserError, match=errors):
        open_store(f"etcd:https://{plain.endpoint}/test", access=secured.access, timeout=PATIENCE)


def test_a_file_that_cannot_be_used_is_named(secured: SecuredStore, tmp_path: Path) -> None:
    letter, absent, other = tmp_path / "letter", tmp_path / "absent", Authority(tmp_path / "other").identity("client")
    letter.write_text("Dear Sirs")
    empty = tmp_path / "empty"
    empty.touch()
    for field, path, named in (
        ("ca_file", letter, "store.ca_file"),
        ("ca_file", absent, "store.ca_file"),
        ("cert_file", letter, "store.cert_file"),
        ("cert_file", absent, "store.cert_file"),
        ("key_file", absent, "store.key_file"),
        ("key_file", other.key, "store.cert_file"),
    ):
        access = replace(secured.access, **{field: path})  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"{named} is .*, which cannot be used .*; name a file with") as raised:
            open_store(secured.url, access=access, timeout=PATIENCE)
        assert "\n" not in str(raised.value)
    for path, why in ((absent, "which cannot be used"), (empty, "which is empty")):
        with pytest.raises(UserError, match=f"store.password_file is .*, {why}"):
            open_store(secured.url, access=replace(secured.access, user="me", password_file=path), timeout=PATIENCE)


def ask(etcd: Etcd, path: str, token: str = "", **fields: object) -> dict[str, object]:
    """One request of an administrator."""
    connection = HTTPConnection("127.0.0.1", etcd.port, timeout=PATIENCE)
    connection.request("POST", f"/v3/auth/{path}", json.dumps(fields), {"Authorization": token} if token else {})
    answer: dict[str, object] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def protect(etcd: Etcd) -> None:
    """Enable authentication with two users: root, and one with access to keys that begin with `mine`."""
    for user in ("root", "fairtape", "guest"):
        ask(etcd, "user/add", name=user, password=f"of {user}")
        ask(etcd, "role/add", name=user)
        ask(etcd, "user/grant", user=user, role=user)
    mine = {"permType": "READWRITE", "key": "bWluZS8=", "range_end": "bWluZTA="}  # from mine/ up to mine0
    ask(etcd, "role/grant", name="fairtape", perm=mine)
    ask(etcd, "enable")


def test_a_user_logs_in_with_the_password_and_again_when_the_token_expires(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        protect(etcd)
        password = tmp_path / "password"
        password.write_text("of fairtape\n")
        access = EtcdAccess(user="fairtape", password_file=password)
        url = f"etcd:http://{etcd.endpoint}/mine"
        use(f"{url}/one", access)
        with closing(open_store(f"{url}/two", access=access, timeout=PATIENCE)) as store:
            assert isinstance(store, EtcdStore)
            root = str(ask(etcd, "authenticate", name="root", password="of root")["token"])  # noqa: S106
            ask(etcd, "user/add", root, name="another", password="of another")  # noqa: S106 - every login is old now
            assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
            store._client._connections[0]._token = "nonsense"  # noqa: S105 - as after a restart of the cluster
            assert store.answer(Record((FIRST,))) == Recorded((FIRST,))
            assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))
        with pytest.raises(UserError, match=r"where store.user may not write; grant it a role"):
            open_store(f"etcd:http://{etcd.endpoint}/theirs", access=access, timeout=PATIENCE)
        with pytest.raises(
            UserError, match=r"login is rejected; correct store.url .*, store.user or store.password_file"
        ):
            open_store(f"{url}/one", timeout=PATIENCE)
        password.write_text("of another user")
        with pytest.raises(
            UserError, match=r"login is rejected; correct store.url .*, store.user or store.password_file"
        ):
            open_store(f"{url}/one", access=access, timeout=PATIENCE)


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_deployment_works_with_a_secured_store(secured: SecuredStore, tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    url = f"{secured.url}/deployment"
    assert run("init", folder, "--sites", 1, "--profile", "metro", "--reformers", 1, "--store", url)[0] == 0
    access = secured.access
    given = "\n".join(f'{name} = "{getattr(access, name)}"' for name in ("ca_file", "cert_file", "key_file"))
    file = folder / "deployment.toml"
    code, _, errors = run("node", folder, "x1")
    assert (code, errors.count("\n")) == (2, 1)
    assert "the certificate is not trusted" in errors
    file.write_text(file.read_text().replace("[store]", f"[store]\n{given}", 1))
    code, output, errors = run("up", folder, "--seconds", 5)
    assert code == 0, errors
    assert "formation 1 of s1: the first formation" in output
