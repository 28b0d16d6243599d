"""A collection of a cluster's objects is what it is now, whatever happens to lists, watches and connections."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_metrics_collector.adapters.kubernetes.api import KubernetesApi, connect
from pointsman_metrics_collector.adapters.kubernetes.reflector import Reflector
from pointsman_metrics_collector.domain.kubernetes.answers import Lines, Unreachable, UnreadableAnswer, read_change
from pointsman_metrics_collector.domain.kubernetes.collections import Collection, objectives, pods
from pointsman_metrics_collector.domain.kubernetes.objects import InferenceObjective, KubeObject, Pod
from pointsman_testing import eventually
from pointsman_testing.kube_api import KubeApi
from pointsman_testing.kube_objects import OBJECTIVES, TOKEN, kubeconfig

SHORTEST_S = 0.1
CERTIFICATES = Path(__file__).with_name("certificates")
PODS = pods("default", {"app": "vllm"})


@pytest.fixture
async def cluster() -> AsyncGenerator[KubeApi]:
    async with KubeApi() as started:
        yield started


@pytest.fixture
def api(cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., KubernetesApi]:
    """Connects as `KUBECONFIG` says."""

    def connected(token: str | None = None, **settings: float) -> KubernetesApi:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path, **({"token": token} if token else {}))))
        return connect(watch_s=int(settings.get("watch_s", 30)), patience_s=settings.get("patience_s", 8.0))

    return connected


class Followed:
    """A reflector with everything that it said."""

    def __init__(self, api: KubernetesApi, collection: Collection[KubeObject] = PODS, relist_s: float = 300.0) -> None:
        self.changes = 0
        self.problems: list[str] = []
        self.reflector = Reflector(
            api,
            collection,
            self._changed,
            relist_s=relist_s,
            shortest_s=SHORTEST_S,
            poll_s=0.05,
            uniform=lambda low, high: low,
        )

    def _changed(self) -> None:
        self.changes += 1
        self.problems.append(self.problem)

    @property
    def names(self) -> list[str] | None:
        objects = self.reflector.seen.objects
        return None if objects is None else sorted(objects)

    @property
    def problem(self) -> str:
        return self.reflector.seen.problem


@asynccontextmanager
async def following(
    api: KubernetesApi, *args: Collection[KubeObject], relist_s: float = 300.0
) -> AsyncGenerator[Followed]:
    followed = Followed(api, *args, relist_s=relist_s)
    task = asyncio.create_task(followed.reflector.run())
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.wait([task])
        await api.close()
    assert task.cancelled(), task.exception()


Api = Callable[..., KubernetesApi]


async def test_pods_that_come_change_and_go_are_followed(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    cluster.pod("other", labels={"app": "web"})
    async with following(api()) as pods_:
        await eventually(lambda: pods_.names == ["a"])
        await eventually(lambda: cluster.watching == 1)
        cluster.pod("b")
        await eventually(lambda: pods_.names == ["a", "b"])
        cluster.pod("b", ip="10.0.0.9")
        await eventually(lambda: _pod(pods_, "b").status.pod_ip == "10.0.0.9")
        cluster.pod("a", labels={"app": "web"})
        await eventually(lambda: pods_.names == ["b"])
        cluster.delete(("v1", "pods"), "b")
        await eventually(lambda: pods_.names == [])
        [listed] = [asked for asked in cluster.asked if not asked.watches]
        assert "resourceVersion" not in listed.query, "a list from a cache may be older than what is known"


def _pod(followed: Followed, name: str) -> Pod:
    found = (followed.reflector.seen.objects or {})[name]
    assert isinstance(found, Pod)
    return found


async def test_a_missed_deletion_leaves_no_ghost_after_410_gone(cluster: KubeApi, api: Api) -> None:
    for in_stream in (False, True):
        cluster.gone_in_stream = in_stream
        cluster.pod("a")
        cluster.pod("b")
        async with following(api()) as pods_:
            await eventually(lambda followed=pods_: followed.names == ["a", "b"] and cluster.watching == 1)
            cluster.fall_silent()  # the deletion isn't told
            cluster.delete(("v1", "pods"), "a")
            cluster.compact()
            cluster.cut()
        async with following(api()) as pods_:
            await eventually(lambda followed=pods_: followed.names == ["b"])
            lists = pods_.reflector.lists
            cluster.cut()
            cluster.delete(("v1", "pods"), "b")
            cluster.compact()
            await eventually(lambda followed=pods_: followed.names == [])
            assert pods_.reflector.lists > lists, "only a list tells what isn't there any more"
            assert not pods_.problem


async def test_a_watch_that_was_cut_goes_on_from_where_it_was(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api()) as pods_:
        for number in range(3):
            await eventually(lambda: cluster.watching == 1)
            cluster.cut()
            cluster.pod(f"b{number}")
            await eventually(lambda expected=number + 2: len(pods_.names or ()) == expected)
        assert pods_.reflector.lists == 1
        await eventually(lambda: not pods_.problem)


async def test_bookmarks_carry_a_quiet_watch_past_what_the_server_forgets(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api()) as pods_:
        await eventually(lambda: cluster.watching == 1)
        changes = pods_.changes
        for number in range(5):
            cluster.put(OBJECTIVES, f"o{number}", {})
        cluster.bookmark()
        cluster.pod("b")
        await eventually(lambda: pods_.names == ["a", "b"])
        assert pods_.changes == changes + 1, "a bookmark is no change"
        cluster.bookmark()
        await asyncio.sleep(0)
        cluster.compact()
        cluster.pod("c")
        await eventually(lambda: pods_.names == ["a", "b", "c"])
        cluster.end()
        cluster.pod("d")
        await eventually(lambda: pods_.names == ["a", "b", "c", "d"])
        assert pods_.reflector.lists == 1


@pytest.mark.parametrize(
    "rubbish",
    [b'{"type":"ADDED","object":{"metadata":{"name":"gho', b"no json\n", b'{"type":"NEWS","object":{}}\n', b"[]\n\n"],
    ids=["half a line", "no JSON", "an unknown event", "no event"],
)
async def test_a_line_that_is_no_event_ends_the_watch_and_becomes_nothing(
    cluster: KubeApi, api: Api, rubbish: bytes
) -> None:
    cluster.pod("a")
    async with following(api()) as pods_:
        await eventually(lambda: cluster.watching == 1)
        cluster.send(rubbish)
        await asyncio.sleep(0)
        cluster.end()
        cluster.pod("b")
        await eventually(lambda: pods_.names == ["a", "b"])
        await eventually(lambda: not pods_.problem)


async def test_an_event_that_arrives_byte_by_byte_is_taken_whole(cluster: KubeApi, api: Api) -> None:
    async with following(api()) as pods_:
        await eventually(lambda: cluster.watching == 1)
        document = b'{"type":"ADDED","object":{"metadata":{"name":"slow","resourceVersion":"9"},"status":{}}}\n'
        for byte in document:
            cluster.send(bytes([byte]))
        await eventually(lambda: pods_.names == ["slow"])


async def test_a_connection_that_died_without_a_word_is_missed_and_made_anew(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api(watch_s=1, patience_s=0.2)) as pods_:
        await eventually(lambda: cluster.watching == 1)
        cluster.fall_silent()
        cluster.delete(("v1", "pods"), "a")
        await eventually(lambda: pods_.names == [])


async def test_watches_leave_each_other_and_lists_their_connections(cluster: KubeApi, api: Api) -> None:
    watches = 110
    connected = api()
    version = (await connected.list_page(PODS)).version
    async with AsyncExitStack() as stack:
        stack.push_async_callback(connected.close)
        for _ in range(watches):
            await stack.enter_async_context(connected.watch_collection(PODS, version))
        assert cluster.watching == watches
        assert (await connected.list_page(PODS)).version


async def test_a_list_is_taken_anew_from_time_to_time(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api(), relist_s=0.2) as pods_:
        await eventually(lambda: pods_.reflector.lists >= 3)
        assert pods_.names == ["a"]


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_in_a_loop(cluster: KubeApi, api: Api) -> None:
    cluster.ends_at_once = True
    async with following(api()) as pods_:
        await eventually(lambda: pods_.names == [])

        def watches() -> int:
            return [asked.watches for asked in cluster.asked].count(True)

        await eventually(lambda: watches() >= 2)
        began, before = asyncio.get_running_loop().time(), watches()
        await eventually(lambda: watches() >= before + 2)
        assert asyncio.get_running_loop().time() - began >= SHORTEST_S


async def test_a_long_list_comes_in_pages_and_is_begun_anew_when_it_expires(cluster: KubeApi, api: Api) -> None:
    cluster.page = 2
    for number in range(5):
        cluster.pod(f"p{number}")
    async with following(api()) as pods_:
        await eventually(lambda: pods_.names == [f"p{number}" for number in range(5)])
        assert sum("continue" in asked.query for asked in cluster.asked) == 2
    cluster.asked.clear()
    expiring = api()
    page = await expiring.list_page(PODS)
    cluster.compact()
    assert page.rest
    cluster.failing.extend([(410, {})])
    async with following(expiring) as pods_:
        await eventually(lambda: pods_.names == [f"p{number}" for number in range(5)])


async def test_while_the_server_fails_what_is_known_stays_and_is_said_to_be_old(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api()) as pods_:
        await eventually(lambda: cluster.watching == 1)
        cluster.failing.extend([(503, {}), (429, {"retry-after": "0"}), (500, {})])
        cluster.end()
        await eventually(lambda: not cluster.failing and not pods_.problem and cluster.watching == 1)
        told = [problem for problem in pods_.problems if problem]
        assert ["503" in told[0], "429" in told[1], "500" in told[2]] == [True] * 3, told
        assert pods_.names == ["a"]
        assert pods_.reflector.lists == 1


async def test_a_role_that_is_missing_is_named_with_what_to_do(cluster: KubeApi, api: Api) -> None:
    cluster.denied.add("pods")
    async with following(api()) as pods_:
        await eventually(lambda: "answers 403" in pods_.problem and "docs/kubernetes.md" in pods_.problem)
        assert pods_.names is None, "nothing is known yet"
        cluster.denied.clear()
        await eventually(lambda: pods_.names == [])
    # No secret: a token that the server doesn't know.
    async with following(api(token="somebody else")) as pods_:  # noqa: S106
        await eventually(lambda: "answers 401" in pods_.problem)
        assert "its token isn't accepted" in pods_.problem
        assert "role" not in pods_.problem
        assert "somebody else" not in pods_.problem


async def test_without_the_right_to_watch_lists_stand_for_it_and_that_is_logged(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api()) as pods_:
        await eventually(lambda: cluster.watching == 1)
        cluster.denied.add("watch pods")
        cluster.end()
        await eventually(lambda: "pods in namespace default: listed every 0.05 s, not watched" in pods_.problem)
        assert "cannot watch" in pods_.problem
        cluster.pod("b")
        await eventually(lambda: pods_.names == ["a", "b"])
        cluster.delete(("v1", "pods"), "a")
        await eventually(lambda: pods_.names == ["b"])
        assert len(set(pods_.problems) - {""}) == 1, "it is told once"
        cluster.denied.clear()
        await eventually(lambda: not pods_.problem and cluster.watching == 1)


async def test_without_the_right_to_list_the_watch_goes_on_and_that_is_logged(cluster: KubeApi, api: Api) -> None:
    cluster.pod("a")
    async with following(api()) as pods_:
        await eventually(lambda: cluster.watching == 1)
        cluster.denied.add("list pods")
        cluster.end()
        await eventually(lambda: "pods in namespace default: only watched" in pods_.problem)
        cluster.pod("b")
        await eventually(lambda: pods_.names == ["a", "b"])
        cluster.compact()
        cluster.cut()
        cluster.pod("c")
        await eventually(lambda: pods_.names == ["a", "b", "c"])
        cluster.denied.clear()
        cluster.end()
        await eventually(lambda: not pods_.problem and pods_.reflector.lists == 2)


async def test_a_role_that_only_allows_to_watch_is_enough_to_find_what_there_is(cluster: KubeApi, api: Api) -> None:
    cluster.denied.add("list pods")
    cluster.pod("a")
    cluster.pod("other", labels={"app": "web"})
    async with following(api()) as pods_:
        await eventually(lambda: pods_.names == ["a"])
        cluster.delete(("v1", "pods"), "a")
        await eventually(lambda: pods_.names == [])


async def test_a_kind_that_the_cluster_does_not_know_is_fine_where_it_is_optional(cluster: KubeApi, api: Api) -> None:
    cluster.absent.add("inferenceobjectives")
    first, _ = objectives("default")
    async with following(api(), first) as known:
        await eventually(lambda: known.names == [])
        assert not known.problem
    cluster.absent.clear()
    cluster.put(OBJECTIVES, "vip", {"spec": {"priority": 3}})
    async with following(api(), first) as known:
        await eventually(lambda: known.names == ["vip"] and cluster.watching == 1)
        cluster.absent.add("inferenceobjectives")
        cluster.end()
        await eventually(lambda: "answers 404" in known.problem)
        assert known.names == ["vip"], "a server that begins forgets kinds for a moment"
        cluster.absent.clear()
        await eventually(lambda: not known.problem)
        cluster.absent.add("inferenceobjectives")
        cluster.cut()
    needed = Collection(InferenceObjective, "llm-d.ai/v1alpha2", "inferenceobjectives", "default")
    async with following(api(), needed) as known:
        await eventually(lambda: "CustomResourceDefinition" in known.problem)


async def test_an_object_that_is_not_what_its_kind_says_is_left_out_and_named(cluster: KubeApi, api: Api) -> None:
    cluster.put(OBJECTIVES, "good", {"spec": {"priority": 3}})
    cluster.put(OBJECTIVES, "odd", {"spec": {"priority": "high"}})
    first, _ = objectives("default")
    async with following(api(), first) as known:
        await eventually(lambda: known.names == ["good"] and "odd" in known.problem)
        cluster.put(OBJECTIVES, "odd", {"spec": {"priority": 5}})
        await eventually(lambda: known.names == ["good", "odd"] and not known.problem)


async def test_in_a_cluster_the_service_account_is_believed_over_its_own_authority_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "api.crt", CERTIFICATES / "api.key")
    async with KubeApi(tls=context) as cluster:
        host, _, port = cluster.url.removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        (tmp_path / "token").write_text(TOKEN)
        (tmp_path / "namespace").write_text("default")
        (tmp_path / "ca.crt").write_bytes((CERTIFICATES / "api.crt").read_bytes())
        async with following(connect(service_account=str(tmp_path))) as pods_:
            await eventually(lambda: cluster.watching == 1)
            cluster.tokens = {"renewed"}
            (tmp_path / "token").write_text("renewed")
            cluster.end()
            cluster.pod("a")
            await eventually(lambda: pods_.names == ["a"])
            assert not [problem for problem in pods_.problems if problem], "nothing was amiss"
        (tmp_path / "ca.crt").write_bytes((CERTIFICATES / "other.crt").read_bytes())
        async with following(connect(service_account=str(tmp_path))) as pods_:
            await eventually(lambda: "certificate" in pods_.problem.lower())


async def test_a_connection_whose_handshake_is_cut_short_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted, gone = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.set()
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        file = tmp_path / "kubeconfig.yaml"
        file.write_text(yaml.safe_dump(kubeconfig(f"https://127.0.0.1:{port}", TOKEN, "default")))
        monkeypatch.setenv("KUBECONFIG", str(file))
        api = connect()
        asking = asyncio.create_task(api.list_page(PODS))
        await eventually(greeted.is_set)
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(gone.is_set)
        await api.close()


async def test_without_credentials_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(Unreachable, match="no credentials for a cluster"):
        connect()
    (tmp_path / "odd").write_text("clusters: 3")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "odd"))
    with pytest.raises(Unreachable, match="no credentials for a cluster"):
        connect()


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\n", b" ")), max_size=6), st.data())
def test_lines_are_the_same_however_they_are_cut(texts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(text + b"\n" for text in texts) + b"half"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    lines = Lines()
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert [line for piece in pieces for line in lines.split_lines(piece)] == [text for text in texts if text.strip()]


@settings(max_examples=50)
@given(st.binary(max_size=60) | st.just(b'{"type":"BOOKMARK","object":{"metadata":{}}}'))
def test_no_line_is_anything_but_an_event_or_refused(line: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        read_change(Pod, line)
