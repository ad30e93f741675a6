// queen.js against the frames of the protocol's specification, on a socket and a clock of our own.

import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { afterEach, beforeEach, test } from "node:test";

globalThis.crypto ??= webcrypto;
const { connect, QueenError } = await import(new URL("../../queen_actors/static/queen.js", import.meta.url));
const real = { setTimeout, clearTimeout, error: console.error };

/** Timers that run when the test says so. */
class Clock {
  now = 0;
  timers = new Map();
  last = 0;

  install() {
    globalThis.setTimeout = (task, ms = 0) => (this.timers.set(++this.last, { at: this.now + ms, task }), this.last);
    globalThis.clearTimeout = (id) => this.timers.delete(id);
  }

  async pass(ms) {
    const end = this.now + ms;
    for (;;) {
      const due = [...this.timers].filter(([, timer]) => timer.at <= end).sort(([, a], [, b]) => a.at - b.at)[0];
      if (!due) break;
      this.timers.delete(due[0]);
      this.now = due[1].at;
      due[1].task();
      await settled();
    }
    this.now = end;
    await settled();
  }
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

/** A WebSocket whose other end is the test. */
class Socket {
  static all = [];
  static get last() {
    return Socket.all.at(-1);
  }

  constructor(url, protocols) {
    Object.assign(this, { url, protocols, sent: [], closedWith: null });
    Socket.all.push(this);
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close(code) {
    this.closedWith = code ?? 1005;
  }

  async say(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
    await settled();
  }

  welcome(more = {}) {
    const frame = { event: "welcome", protocol: "queen.v1", version: "0", session: "s", maxFrameBytes: 8388608 };
    return this.say({ ...frame, heartbeatSeconds: 20, now: "2026-10-22T10:00:00.000Z", ...more });
  }

  async end(code = 1006, reason = "") {
    this.onclose({ code, reason });
    await settled();
  }

  of(op) {
    return this.sent.filter((frame) => frame.op === op);
  }

  ok(op, body, status = 200) {
    return this.say({ id: this.of(op).at(-1).id, ok: true, status, body });
  }

  refuse(op, status, error) {
    return this.say({ id: this.of(op).at(-1).id, ok: false, status, error });
  }
}

let clock;
let queen;

beforeEach(() => {
  clock = new Clock();
  clock.install();
  Socket.all = [];
});

afterEach(() => {
  queen?.close();
  Object.assign(globalThis, { setTimeout: real.setTimeout, clearTimeout: real.clearTimeout });
  console.error = real.error;
});

const start = (options = {}, url = "http://broker:6632") => (queen = connect(url, { WebSocket: Socket, ...options }));

/** Connected. */
async function open(options) {
  start(options);
  await settled();
  await Socket.last.welcome();
  return queen;
}

/** The connection ends, and the next one is there. */
async function reconnect(code) {
  const before = Socket.all.length;
  await Socket.last.end(code);
  await clock.pass(10_000);
  assert.equal(Socket.all.length, before + 1);
  await Socket.last.welcome();
}

const delivery = (first, count, more = {}) => ({
  event: "messages", sub: "?", queue: "orders", partition: "p", partitionId: "7", leaseId: "lease-1",
  consumerGroup: "billing", ...more,
  messages: Array.from({ length: count }, (_, n) => ({
    id: `m${first + n}`, transactionId: `t${first + n}`, data: first + n, offset: first + n, partitionId: "7",
  })),
});

test("connecting: the address, the subprotocol, and a token in disguise", async () => {
  const states = [];
  start({ token: "höchst/geheim?>" }, "https://example.org/behind/");
  queen.addEventListener("state", ({ detail }) => states.push(detail.state));
  await settled();
  assert.equal(Socket.last.url, "wss://example.org/behind/api/v1/ws");
  const [protocol, bearer] = Socket.last.protocols;
  assert.equal(protocol, "queen.v1");
  assert.match(bearer, /^bearer\.[\w-]+$/);
  assert.equal(Buffer.from(bearer.slice(7), "base64url").toString(), "höchst/geheim?>");
  await Socket.last.welcome();
  assert.deepEqual(states, ["open"]);
});

test("requests wait for the connection, go out in order, and take their own reply", async () => {
  start();
  const one = queen.request("kv", { operations: [] });
  const two = queen.request("locks", { operations: [] });
  await settled();
  await Socket.last.welcome();
  assert.deepEqual(Socket.last.sent.map((frame) => frame.op), ["kv", "locks"]);
  await Socket.last.ok("locks", "second");
  await Socket.last.ok("kv", "first");
  assert.deepEqual(await Promise.all([one, two]), ["first", "second"]);
});

test("a refusal rejects with the wire's words", async () => {
  await open();
  const words = { code: "kv_bad_request", reason: "kv_bad_namespace", status: 400, message: "no such name" };
  const refused = assert.rejects(queen.kv.put("Bad", "k", 1, { forever: true }), { name: "QueenError", ...words });
  await Socket.last.refuse("kv", 400, { error: "kv_bad_request", reason: "kv_bad_namespace", detail: "no such name" });
  await refused;
  const plain = assert.rejects(queen.request("unsubscribe", { sub: "x" }), { code: "not_found", message: "no such sub" });
  await Socket.last.refuse("unsubscribe", 404, { error: "no such sub" });
  await plain;
});

test("a push names its messages, so that it can be sent again after a lost answer", async () => {
  await open();
  const pushed = queen.push("orders", [{ data: 1, transactionId: "mine" }, "two"], { partition: "p" });
  await settled();
  const [first] = Socket.last.of("push");
  assert.deepEqual(first.items[0], { queue: "orders", partition: "p", payload: 1, transactionId: "mine" });
  assert.match(first.items[1].transactionId, /./);
  await reconnect();
  assert.deepEqual(Socket.last.of("push"), [first]);
  await Socket.last.ok("push", [{ status: "duplicate" }, { status: "queued" }], 201);
  assert.deepEqual((await pushed).map((one) => one.status), ["duplicate", "queued"]);
});

test("what cannot be sent twice rejects when its answer is lost; what was not sent goes on", async () => {
  await open();
  const lost = queen.kv.incr("n", "k", 1, { forever: true });
  const rejected = assert.rejects(lost, { code: "connection_lost" });
  await Socket.last.end();
  await rejected;
  const waits = queen.kv.incr("n", "k", 1, { forever: true });
  await clock.pass(10_000);
  await Socket.last.welcome();
  assert.equal(Socket.last.of("kv").length, 1);
  await Socket.last.ok("kv", { results: [{ applied: true, value: 1 }] });
  assert.equal((await waits).value, 1);
});

test("a request has its time, and there is a bound to how many wait", async () => {
  start({ requestMs: 500 });
  await settled();
  const late = assert.rejects(queen.request("kv", {}), { code: "timeout" });
  await clock.pass(501);
  await late;
  const waiting = Array.from({ length: 1024 }, () => queen.request("kv", {}).catch((error) => error.code));
  await assert.rejects(queen.request("kv", {}), { code: "overloaded" });
  queen.close();
  assert.deepEqual(new Set(await Promise.all(waiting)), new Set(["closed"]));
});

test("a subscription delivers, acknowledges under its lease, and is made again", async () => {
  await open();
  const got = [];
  const messages = queen.subscribe({ queue: "orders", group: "billing", credit: 10 }, (message) => void got.push(message));
  await settled();
  const [asked] = Socket.last.of("subscribe");
  const { id, ...fields } = asked;
  assert.deepEqual(fields, { op: "subscribe", sub: messages.name, queue: "orders", group: "billing", credit: 10 });
  await Socket.last.ok("subscribe", { sub: messages.name, consumerGroup: "billing" });
  await messages.ready;
  await Socket.last.say(delivery(0, 2, { sub: messages.name }));
  assert.deepEqual(got.map((one) => [one.data, one.queue, one.partition]), [[0, "orders", "p"], [1, "orders", "p"]]);
  const verdict = got[0].ack();
  await settled();
  const [ack] = Socket.last.of("ack");
  assert.deepEqual(ack.acknowledgments, [{ transactionId: "t0", partitionId: "7", status: "completed", leaseId: "lease-1" }]);
  assert.equal(ack.consumerGroup, "billing");
  await Socket.last.ok("ack", [{ success: true }]);
  assert.equal((await verdict).success, true);

  await reconnect();
  assert.deepEqual({ ...Socket.last.of("subscribe")[0], id: 0 }, { ...asked, id: 0 });
  assert.equal((await got[1].ack()).success, false); // its lease went with the connection
  assert.equal(Socket.last.of("ack").length, 0);
});

test("a lost lease and a nack take what lies here of it away", async () => {
  await open();
  const messages = queen.subscribe({ queue: "orders", group: "billing" });
  const lost = [];
  messages.onlost = (end) => lost.push(end.reason);
  await settled();
  await Socket.last.ok("subscribe", {});
  await Socket.last.say(delivery(0, 3, { sub: messages.name }));
  await Socket.last.say(delivery(5, 1, { sub: messages.name, leaseId: "lease-2", partition: "q", partitionId: "8" }));
  const iterator = messages[Symbol.asyncIterator]();
  const first = (await iterator.next()).value;
  const verdict = first.nack(new Error("broken"));
  await settled();
  await Socket.last.ok("ack", [{ success: true }]);
  assert.ok((await verdict).success);
  assert.equal(Socket.last.of("ack")[0].acknowledgments[0].error, "Error: broken");
  assert.equal((await iterator.next()).value.data, 5);
  await Socket.last.say(delivery(6, 2, { sub: messages.name }));
  await Socket.last.say({ event: "lease", sub: messages.name, leaseId: "lease-1", state: "lost", reason: "seek" });
  assert.deepEqual(lost, ["seek"]);
  await Socket.last.say(delivery(9, 1, { sub: messages.name, leaseId: "lease-3" }));
  assert.equal((await iterator.next()).value.data, 9);
});

test("a handler that throws nacks, one after the other; leaving a loop unsubscribes", async () => {
  await open();
  console.error = () => {};
  const messages = queen.subscribe({ queue: "orders" }, async (message) => {
    if (message.data === 0) throw new Error("no good");
    await message.ack();
  });
  await settled();
  await Socket.last.ok("subscribe", {});
  await Socket.last.say(delivery(0, 1, { sub: messages.name }));
  await Socket.last.ok("ack", [{ success: true }]);
  await Socket.last.say(delivery(1, 1, { sub: messages.name }));
  assert.deepEqual(Socket.last.of("ack").map((frame) => frame.acknowledgments[0].status), ["failed", "completed"]);

  const loop = (async () => {
    for await (const message of queen.subscribe({ queue: "other" })) return message.data;
  })();
  await settled();
  const name = Socket.last.of("subscribe").at(-1).sub;
  await Socket.last.say(delivery(3, 2, { sub: name }));
  await Socket.last.ok("unsubscribe", { sub: name });
  assert.equal(await loop, 3);
  assert.deepEqual(Socket.last.of("unsubscribe").map((frame) => frame.sub), [name]);
});

test("with autoAck, credit goes back in portions as messages are taken", async () => {
  await open();
  const messages = queen.subscribe({ queue: "orders", autoAck: true, credit: 4 });
  await settled();
  await Socket.last.ok("subscribe", {});
  await Socket.last.say(delivery(0, 4, { sub: messages.name, leaseId: "" }));
  assert.equal(Socket.last.of("credit").length, 0);
  const iterator = messages[Symbol.asyncIterator]();
  for (let n = 0; n < 3; n += 1) await iterator.next();
  assert.deepEqual(Socket.last.of("credit").map(({ sub, add }) => [sub, add]), [[messages.name, 2]]);
});

test("a tail goes on at the next offset of what was taken, and tells gaps", async () => {
  await open();
  const tail = queen.tail({ queue: "orders", from: "now", credit: 100 });
  const iterator = tail[Symbol.asyncIterator]();
  await settled();
  assert.equal(Socket.last.of("tail")[0].from, "now");
  await Socket.last.ok("tail", { sub: tail.name, from: { p: 17, q: 3 } });
  await Socket.last.say(delivery(17, 3, { sub: tail.name, leaseId: undefined }));
  assert.equal((await iterator.next()).value.data, 17);
  assert.equal((await iterator.next()).value.data, 18);

  await reconnect(); // 19 lies here untaken: it comes again
  assert.deepEqual(Socket.last.of("tail")[0].from, { p: 19, q: 3 });
  await Socket.last.ok("tail", { sub: tail.name, from: { p: 19, q: 3 } });
  await Socket.last.say({ event: "gap", sub: tail.name, partition: "p", from: 19, to: 41 });
  await Socket.last.say(delivery(42, 1, { sub: tail.name }));
  assert.deepEqual((await iterator.next()).value, { gap: true, partition: "p", from: 19, to: 41 });

  await reconnect();
  assert.deepEqual(Socket.last.of("tail")[0].from, { p: 42, q: 3 });
  const closing = tail.close();
  await Socket.last.ok("unsubscribe", { sub: tail.name });
  await closing;
  assert.equal((await iterator.next()).done, true);
});

test("a tail of nothing yet resumes from nothing, so that no partition is missed", async () => {
  await open();
  queen.tail({ queue: "orders" }, () => {});
  await settled();
  await Socket.last.ok("tail", { sub: "?", from: {} });
  await reconnect();
  assert.deepEqual(Socket.last.of("tail")[0].from, {});
});

test("a watch has the rows, follows changes, and goes on at its version", async () => {
  await open();
  const changes = [];
  const watch = queen.watch({ ns: "carts", prefix: "customer-" }, ({ op, key, value }) => void changes.push([op, key, value]));
  await settled();
  const [{ id, ...asked }] = Socket.last.of("watch");
  assert.deepEqual(asked, { op: "watch", watch: watch.name, ns: "carts", prefix: "customer-" });
  const row = (key, value, version) => ({ op: "get", found: true, key, value, version, expiresAt: null });
  await Socket.last.ok("watch", { watch: watch.name, version: 9, rows: [row("customer-1", "a", 4), row("customer-2", "b", 7)] });
  await Socket.last.say({
    event: "kv", watch: watch.name,
    changes: [
      { op: "put", key: "customer-3", value: "c", version: 10, expiresAt: null },
      { op: "expire", key: "customer-1", value: null, version: 11, expiresAt: null },
    ],
  });
  assert.deepEqual(changes, [["put", "customer-1", "a"], ["put", "customer-2", "b"], ["put", "customer-3", "c"], ["expire", "customer-1", null]]);
  assert.deepEqual([...watch.rows.keys()], ["customer-2", "customer-3"]);

  await reconnect();
  assert.equal(Socket.last.of("watch")[0].fromVersion, 11);
  await Socket.last.ok("watch", { watch: watch.name, version: 30 });
  changes.length = 0;
  await Socket.last.say({ event: "kv", watch: watch.name, gap: true, version: 30, rows: [row("customer-2", "b", 7), row("customer-4", "d", 30)], changes: [] });
  assert.deepEqual(changes, [["delete", "customer-3", null], ["put", "customer-4", "d"]]);
  assert.equal(watch.version, 30);
  const closing = watch.close();
  await Socket.last.ok("unwatch", { watch: watch.name });
  await closing;
});

test("changes that nobody takes are kept as the latest of each key", async () => {
  await open();
  const watch = queen.watch({ ns: "n", prefix: "k" });
  await settled();
  await Socket.last.ok("watch", { watch: watch.name, version: 0, rows: [] });
  for (let version = 1; version <= 3000; version += 1) {
    const change = { op: "put", key: `k${version % 3}`, value: version, version, expiresAt: null };
    Socket.last.onmessage({ data: JSON.stringify({ event: "kv", watch: watch.name, changes: [change] }) });
  }
  const iterator = watch[Symbol.asyncIterator]();
  const latest = new Map();
  for (let taken = 0; ; taken += 1) {
    const { value } = await iterator.next();
    latest.set(value.key, value.value);
    assert.ok(taken <= 1024);
    if (value.version === 3000) break;
  }
  assert.deepEqual([...latest.values()].sort(), [2998, 2999, 3000]);
});

test("a silent connection is asked, and dropped when it does not answer", async () => {
  await open();
  await clock.pass(40_000);
  assert.equal(Socket.last.of("ping").length, 1);
  await Socket.last.say({ event: "pong" });
  await clock.pass(19_000);
  assert.equal(Socket.all.length, 1);
  await clock.pass(45_000);
  assert.equal(Socket.all[0].closedWith, 1005);
  assert.equal(queen.state, "connecting");
  assert.equal(Socket.all.length, 2);
});

test("a connection that is busy is not asked", async () => {
  await open();
  for (let n = 0; n < 10; n += 1) {
    await clock.pass(15_000);
    await Socket.last.say({ event: "pong" });
  }
  assert.equal(Socket.last.of("ping").length, 0);
});

test("pauses before connecting again grow, with jitter, up to their bound", async () => {
  await open({ pauseMs: 100, pauseMsMax: 1000 });
  const pauses = [];
  for (let n = 0; n < 7; n += 1) {
    const before = clock.now;
    await Socket.last.end();
    assert.equal(queen.state, "waiting");
    while (queen.state === "waiting") await clock.pass(1);
    pauses.push(clock.now - before);
  }
  pauses.forEach((pause, n) => {
    const most = Math.min(100 * 2 ** n, 1000);
    assert.ok(pause >= most / 2 && pause <= most + 1, `pause ${n}: ${pause}`);
  });
});

test("a handshake that hangs is given up", async () => {
  start();
  await settled();
  await clock.pass(10_001);
  assert.equal(Socket.last.closedWith, 1005);
  await clock.pass(1000);
  assert.equal(Socket.all.length, 2);
});

test("a token that does not hold ends the client; one that is asked for is asked for again", async () => {
  await open();
  const messages = queen.subscribe({ queue: "q" });
  const next = assert.rejects(messages[Symbol.asyncIterator]().next(), { code: "unauthorized", status: 401 });
  await Socket.last.end(4401, "the token does not hold");
  await next;
  assert.equal(queen.state, "closed");
  await assert.rejects(queen.request("kv", {}), { code: "unauthorized" });

  let asked = 0;
  await open({ token: async () => `token-${++asked}` });
  await Socket.last.end(4401);
  await clock.pass(1000);
  const protocols = Socket.last.protocols;
  assert.equal(Buffer.from(protocols[1].slice(7), "base64url").toString(), "token-2");
});

test("a stream that is refused ends with the error; one that comes at a bad time is asked again", async () => {
  await open();
  const refused = queen.tail({ queue: "" });
  await settled();
  await Socket.last.refuse("tail", 400, { error: "queue is required", code: "bad_request" });
  await assert.rejects(refused.ready, QueenError);
  await assert.rejects(refused[Symbol.asyncIterator]().next(), { code: "bad_request" });

  const later = queen.tail({ queue: "q" });
  await settled();
  await Socket.last.refuse("tail", 429, { error: "later", code: "overloaded" });
  await clock.pass(1000);
  assert.equal(Socket.last.of("tail").length, 3);
  await Socket.last.ok("tail", { from: {} });
  await later.ready;

  await Socket.last.say({ event: "error", op: "tail", sub: later.name, status: 404, error: { error: "gone", code: "not_found" } });
  assert.equal(later.error.code, "not_found");
});

test("locks: a place in line, a permit of the session, and word when it is lost", async () => {
  await open();
  const told = [];
  queen.addEventListener("lock", ({ detail }) => told.push([detail.name, detail.token, detail.reason]));
  const permit = queen.locks.acquire("daily", { ttlSeconds: 30, waitSeconds: 60, owner: "w1", session: true });
  await settled();
  const [{ id, ...asked }] = Socket.last.of("lock.acquire");
  assert.deepEqual(asked, { op: "lock.acquire", name: "daily", ttlSeconds: 30, owner: "w1", session: true, waitSeconds: 60 });
  await clock.pass(59_000); // longer than a request may take
  await Socket.last.ok("lock.acquire", { op: "acquire", name: "daily", acquired: true, slot: 0, token: 17 });
  assert.equal((await permit).token, 17);
  await Socket.last.say({ event: "lock", name: "daily", state: "lost", token: 17, slot: 0, reason: "deleted" });
  const again = queen.locks.acquire("daily", { session: true });
  await settled();
  await Socket.last.ok("lock.acquire", { op: "acquire", name: "daily", acquired: true, slot: 0, token: 18 });
  await again;
  await Socket.last.end();
  assert.deepEqual(told, [["daily", 17, "deleted"], ["daily", 18, "disconnected"]]);
});

test("timers carry any JSON, keys their lifetime", async () => {
  await open();
  queen.timers.schedule("reminders", "k", { text: "Grüße 😀" }, { delayMs: 1500, partition: "p", txn: "t" }).catch(() => {});
  queen.kv.put("n", "k", null, { ttlSeconds: 5, expect: 0 }).catch(() => {});
  await settled();
  const [timer] = Socket.last.of("timers")[0].operations;
  assert.deepEqual(JSON.parse(Buffer.from(timer.payload, "base64").toString()), { text: "Grüße 😀" });
  assert.deepEqual({ ...timer, payload: "" }, { op: "schedule", queue: "reminders", timerKey: "k", payload: "", delayMs: 1500, txn: "t", partition: "p" });
  assert.deepEqual(Socket.last.of("kv")[0].operations, [{ op: "put", ns: "n", key: "k", value: null, ttlSeconds: 5, expect: 0 }]);
});
