/**
 * The client of a queen_actors broker for browsers: one WebSocket (`queen.v1`), no dependencies.
 *
 *     import { connect } from "/static/queen.js";
 *
 *     const queen = connect();                       // the broker that served this file
 *     await queen.push("orders", { amount: 120 }, { partition: "customer-42" });
 *     queen.subscribe({ queue: "orders", group: "billing" }, async (message) => {
 *       await queen.kv.incr("sums", "orders", message.data.amount, { forever: true });
 *       await message.ack();
 *     });
 *
 * A lost connection is opened again, with growing pauses, for as long as the client is not closed. Subscriptions are made
 * again, tails go on at the next offset, watches at the next version. A request whose answer was lost is sent again where
 * that is safe; where it is not, it rejects with the code `connection_lost`: whether it was done is not known.
 *
 * Numbers are JavaScript's: integers beyond 2^53 lose digits here.
 */

const REQUEST_MS = 30_000;
const HANDSHAKE_MS = 10_000;
const HEARTBEAT_SECONDS = 20; // until the broker's welcome tells its own
const PAUSE_MS = 250;
const PAUSE_MS_MAX = 10_000;
const REQUESTS_MAX = 1024; // that wait for their answer, or for a connection
const CHANGES_MAX = 1024; // of one watch that nobody has taken yet; beyond it only the latest of each key is kept
const CREDIT = 100;
const CODES = {
  400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "conflict", 413: "too_large",
  429: "overloaded", 503: "unavailable",
};
const REFUSED = new Set([4400, 4401, 4403]); // close codes after which connecting again is of no use

/** What the broker refused, or what became of a request that it did not answer. */
export class QueenError extends Error {
  /** `code` and `reason` are the wire's words, `status` is the HTTP status. */
  constructor(message, { code, reason = null, status = 0 } = {}) {
    super(message);
    this.name = "QueenError";
    this.code = code;
    this.reason = reason;
    this.status = status;
  }

  static of(status, error) {
    const told = error ?? {};
    const message = told.detail ?? told.error ?? `the broker answered ${status}`;
    const word = told.detail === undefined ? CODES[status] : told.error; // beside a detail, `error` is the code
    return new QueenError(message, { code: told.code ?? word ?? "error", reason: told.reason ?? null, status });
  }
}

/**
 * A client of the broker at `url` (http, https, ws or wss; without one, where this file came from).
 *
 * Options: `token`, a bearer token, or an (async) function that gives one, asked at every connection; `WebSocket`, the
 * class to use; `requestMs`, how long a request may take (30 s); `pauseMs` and `pauseMsMax`, the first and the longest
 * pause before connecting again (0.25 s and 10 s).
 */
export function connect(url, options = {}) {
  return new Queen(url, options);
}

/**
 * What `connect` gives. Events: `state` (detail `{ state, attempt, reason }`; states are connecting, open, waiting and
 * closed), `lock` (a permit acquired here was lost), `error` (what the broker said about no request in particular).
 */
export class Queen extends EventTarget {
  constructor(url, options) {
    super();
    this._url = socketUrl(url);
    this._options = { requestMs: REQUEST_MS, pauseMs: PAUSE_MS, pauseMsMax: PAUSE_MS_MAX, ...options };
    this._WebSocket = options.WebSocket ?? globalThis.WebSocket;
    this._pending = new Map();
    this._streams = new Map();
    this._permits = new Map();
    this._lastId = 0;
    this._attempt = 0;
    this._socket = null;
    this._timers = new Set();
    /** How many connections there have been; what was delivered by an earlier one cannot be settled any more. */
    this.epoch = 0;
    this.state = "connecting";
    this.kv = new Kv(this);
    this.locks = new Locks(this);
    this.timers = new Timers(this);
    this._online = () => this.state === "waiting" && this._connect();
    globalThis.addEventListener?.("online", this._online);
    this._connect();
  }

  // Requests

  /**
   * Send any operation of the protocol; resolves to the `body` of its reply, rejects with a QueenError.
   * `repeatable`: sent twice, it does and answers the same as sent once.
   */
  request(op, fields = {}, { repeatable = false, timeoutMs = this._options.requestMs } = {}) {
    if (this.state === "closed") return Promise.reject(this._failure);
    if (this._pending.size >= REQUESTS_MAX) {
      const full = `${REQUESTS_MAX} requests wait for their answer already`;
      return Promise.reject(new QueenError(full, { code: "overloaded", status: 429 }));
    }
    const id = ++this._lastId;
    return new Promise((resolve, reject) => {
      const request = { text: JSON.stringify({ id, op, ...fields }), repeatable, resolve, reject, sent: false };
      request.timer = setTimeout(() => {
        this._pending.delete(id);
        reject(new QueenError(`no answer to ${op} in time`, { code: "timeout" }));
      }, timeoutMs);
      this._pending.set(id, request);
      if (this.state === "open") this._send(request);
    });
  }

  /**
   * Append one item or an array of them, in order; durable when it resolves, to one answer for each. An item is any
   * JSON value; `{ data, transactionId }` names the message: pushed again, it is stored once.
   */
  async push(queue, items, { partition } = {}) {
    const wired = (Array.isArray(items) ? items : [items]).map((item) => {
      const envelope = item !== null && typeof item === "object" && ("data" in item || "payload" in item);
      const named = item?.transactionId;
      return {
        queue,
        ...(partition === undefined ? {} : { partition }),
        payload: envelope ? ("data" in item ? item.data : item.payload) : item,
        transactionId: typeof named === "string" && named ? named : newId(),
      };
    });
    if (wired.length === 0) return [];
    const results = await this.request("push", { items: wired }, { repeatable: true });
    const refused = results.find((one) => !["queued", "duplicate", "buffered"].includes(one.status));
    if (refused) {
      throw Object.assign(new QueenError(refused.error, { code: "push_failed", status: 409 }), { results });
    }
    return results;
  }

  /** Lease messages, with the fields of the HTTP route (`queue`, `consumerGroup`, `batch`, `wait`, `timeout`, ...). */
  async pop(fields) {
    const waiting = fields.wait ? (fields.timeout ?? 30_000) : 0;
    const popped = await this.request("pop", fields, { timeoutMs: waiting + this._options.requestMs });
    return (popped?.messages ?? []).map((one) => this._message({ ...one, queue: popped.queue ?? fields.queue }));
  }

  /** Settle one message, or several of one group: completed, failed, retry or dlq. Resolves to one verdict for each. */
  async ack(messages, status = "completed", { error, group } = {}) {
    const many = Array.isArray(messages) ? messages : [messages];
    if (many.length === 0) return [];
    const acknowledgments = many.map((message) => ({
      transactionId: message.transactionId,
      partitionId: message.partitionId,
      status,
      ...(error === undefined ? {} : { error: String(error) }),
      ...(message.leaseId ? { leaseId: message.leaseId } : {}),
    }));
    const consumerGroup = group ?? many[0].consumerGroup;
    return this.request("ack", { acknowledgments, ...(consumerGroup ? { consumerGroup } : {}) });
  }

  /** Pushes, acks, keys and timers that happen together or not at all: the fields of the HTTP route. */
  transaction(fields) {
    return this.request("transaction", fields);
  }

  /** Create or change a queue. */
  configure(queue, options = {}) {
    return this.request("configure", { queue, options }, { repeatable: true });
  }

  // Streams

  /**
   * Consume under leases. The fields are those of the protocol: `queue`, `group`, `partition`, `credit`, `batch`,
   * `autoAck`, `leaseSeconds`, `subscriptionMode` and so on. Each message has `ack()`, `nack(error)`, `retry()` and
   * `deadLetter(error)`; a handler that throws nacks its message. Without a handler: `for await (const message of ...)`.
   */
  subscribe(fields, handler) {
    return this._start(new Subscription(this, { credit: CREDIT, ...fields }, handler));
  }

  /**
   * Read every message after `from` ("now", "start", an ISO instant, or the next offset of each partition), without a
   * lease. What retention has removed meanwhile comes as `{ gap: true, partition, from, to }`.
   */
  tail(fields, handler) {
    return this._start(new Tail(this, { from: "now", credit: 1000, ...fields }, handler));
  }

  /**
   * Follow the keys of `ns`, one (`key`) or those under a `prefix`: first what is there, then each change as
   * `{ op: "put" | "delete" | "expire", key, value, version, expiresAt }`. `rows` of the result is a Map of what is
   * there now.
   */
  watch(fields, handler) {
    return this._start(new Watch(this, fields, handler));
  }

  /** End the connection and everything on it; what is leased is given back. */
  close() {
    this._end(new QueenError("the client is closed", { code: "closed" }), 1000);
  }

  // Inside

  _start(stream) {
    if (this.state === "closed") {
      stream._end(this._failure);
      return stream;
    }
    this._streams.set(stream.name, stream);
    if (this.state === "open") stream._open();
    return stream;
  }

  _message(fields, settling = () => {}) {
    const epoch = this.epoch;
    return new Message(fields, async (message, status, error) => {
      settling(message, status);
      if (epoch !== this.epoch) return { success: false, error: "the connection was lost: the message comes again" };
      return (await this.ack(message, status, { error }))[0];
    });
  }

  _later(ms, task) {
    const timer = setTimeout(() => {
      this._timers.delete(timer);
      task();
    }, ms);
    this._timers.add(timer);
    return timer;
  }

  _stop(timer) {
    clearTimeout(timer);
    this._timers.delete(timer);
  }

  async _connect() {
    this._clear();
    this._become("connecting");
    const turn = (this._turn = {});
    const given = this._options.token;
    let socket;
    try {
      const token = typeof given === "function" ? await given() : given;
      if (this._turn !== turn || this.state === "closed") return;
      const protocols = token ? ["queen.v1", `bearer.${base64url(token)}`] : ["queen.v1"];
      socket = this._socket = new this._WebSocket(this._url, protocols);
    } catch (error) {
      if (this._turn === turn) this._lost(1006, String(error));
      return;
    }
    this._handshake = this._later(HANDSHAKE_MS, () => this._drop(socket, "no welcome in time"));
    socket.onmessage = (event) => socket === this._socket && this._receive(event.data);
    socket.onclose = (event) => socket === this._socket && this._lost(event.code, event.reason);
    socket.onerror = () => {}; // the close that follows says all there is to know
  }

  _become(state, detail = {}) {
    this.state = state;
    this.dispatchEvent(happened("state", { state, attempt: this._attempt, ...detail }));
  }

  _send(request) {
    request.sent = true;
    this._socket.send(request.text);
  }

  _receive(text) {
    this._heard = true;
    const frame = JSON.parse(text);
    if (frame.event === undefined) return this._reply(frame);
    const stream = this._streams.get(frame.sub ?? frame.watch);
    switch (frame.event) {
      case "welcome":
        return this._welcome(frame);
      case "messages":
      case "kv":
      case "gap":
      case "lease":
        return stream?._event(frame);
      case "lock":
        this._permits.delete(`${frame.name}#${frame.slot}`);
        return void this.dispatchEvent(happened("lock", frame));
      case "error":
        if (stream) return stream._refused(QueenError.of(frame.status, frame.error));
        return void this.dispatchEvent(happened("error", frame));
    }
  }

  _reply({ id, ok, status, body, error }) {
    const request = this._pending.get(id);
    if (!request) return;
    this._pending.delete(id);
    clearTimeout(request.timer);
    if (ok) request.resolve(body);
    else request.reject(QueenError.of(status, error));
  }

  _welcome(frame) {
    this._stop(this._handshake);
    this.epoch += 1;
    this.session = frame.session;
    this._attempt = 0;
    this._beat((frame.heartbeatSeconds || HEARTBEAT_SECONDS) * 1000);
    this._become("open");
    for (const stream of [...this._streams.values()]) stream._open();
    for (const request of this._pending.values()) if (!request.sent) this._send(request);
  }

  /** Browsers cannot send a WebSocket ping, and may believe in a dead connection for ever: ask when it is silent. */
  _beat(ms) {
    const socket = this._socket;
    this._heard = true;
    let asked = false;
    const beat = () => {
      if (socket !== this._socket) return;
      if (!this._heard && asked) return this._drop(socket, "the broker does not answer");
      asked = !this._heard;
      if (asked) socket.send('{"op":"ping"}');
      this._heard = false;
      this._later(ms, beat);
    };
    this._later(ms, beat);
  }

  _drop(socket, reason) {
    if (socket !== this._socket) return;
    socket.close();
    this._lost(1006, reason);
  }

  _lost(code, reason) {
    this._socket = null;
    this._turn = null;
    const why = new QueenError(reason || `the connection was closed (${code})`, { code: "connection_lost" });
    if (REFUSED.has(code) && !(code === 4401 && typeof this._options.token === "function")) {
      const status = { 4401: 401, 4403: 403 }[code] ?? 400;
      return this._end(Object.assign(why, { code: status === 400 ? "bad_frame" : "unauthorized", status }));
    }
    for (const [id, request] of this._pending) {
      if (!request.sent || request.repeatable) request.sent = false;
      else this._forget(id, request, why);
    }
    this.epoch += 1;
    for (const stream of this._streams.values()) stream._lost();
    for (const permit of this._permits.values()) {
      this.dispatchEvent(happened("lock", { event: "lock", ...permit, state: "lost", reason: "disconnected" }));
    }
    this._permits.clear();
    this._clear();
    const { pauseMs, pauseMsMax } = this._options;
    const pause = Math.min(pauseMs * 2 ** this._attempt, pauseMsMax) * (0.5 + Math.random() / 2);
    this._attempt += 1;
    this._later(pause, () => this._connect());
    this._become("waiting", { reason: why.message });
  }

  _forget(id, request, error) {
    this._pending.delete(id);
    clearTimeout(request.timer);
    request.reject(error);
  }

  _clear() {
    for (const timer of this._timers) clearTimeout(timer);
    this._timers.clear();
  }

  _end(failure, code) {
    if (this.state === "closed") return;
    this._failure = failure;
    this._clear();
    globalThis.removeEventListener?.("online", this._online);
    const socket = this._socket;
    this._socket = this._turn = null;
    socket?.close(code);
    this._become("closed", { reason: failure.message });
    for (const [id, request] of this._pending) this._forget(id, request, failure);
    for (const stream of [...this._streams.values()]) stream._end(failure);
  }
}

/** A delivered message: the wire's fields, and ways to settle it, each of which resolves to the verdict. */
export class Message {
  #settle;
  #settled = false;

  constructor(fields, settle) {
    Object.assign(this, fields);
    this.#settle = settle;
  }

  /** Whether one of the ways below was taken. */
  get settled() {
    return this.#settled;
  }

  /** It is done, and so is every earlier message of its partition. */
  ack() {
    return this.#verdict("completed");
  }

  /** It failed: it comes again until the queue's retry limit, then it is dead-lettered with this error. */
  nack(error) {
    return this.#verdict("failed", error);
  }

  /** Give it back undone: it comes again, and its retry limit is not charged. */
  retry() {
    return this.#verdict("retry");
  }

  /** Move it to the dead letter queue of its group. */
  deadLetter(error) {
    return this.#verdict("dlq", error);
  }

  #verdict(status, error) {
    this.#settled = true;
    return this.#settle(this, status, error);
  }
}

let lastName = 0;

/**
 * A subscription, a tail or a watch. `ready` resolves when the broker has it for the first time. Items go to the
 * handler, one after the other, or to `for await`, which ends with the broker's error when the stream cannot go on.
 */
class Stream {
  constructor(queen, op, prefix, fields, handler) {
    this.name = `${prefix}${++lastName}`;
    this.fields = fields;
    this.error = null;
    this.ended = false;
    this._queen = queen;
    this._op = op;
    this._handler = handler;
    this._buffer = [];
    this._takers = [];
    this._busy = false;
    this._pause = 0;
    this.ready = new Promise((resolve, reject) => Object.assign(this, { _ready: resolve, _unready: reject }));
    this.ready.catch(() => {}); // who does not ask for it is told by `error` and by iterating
  }

  /** End it; what is leased is given back. */
  async close() {
    if (this.ended) return;
    this._end(null);
    if (this._queen.state === "open") {
      await this._queen.request(...this._closing()).catch(() => {}); // the connection is gone, and the stream with it
    }
  }

  [Symbol.asyncIterator]() {
    return { next: () => this._next(), return: async () => (await this.close(), { done: true, value: undefined }) };
  }

  _next() {
    if (this._buffer.length) return Promise.resolve({ done: false, value: this._take() });
    if (this.error) return Promise.reject(this.error);
    if (this.ended) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this._takers.push({ resolve, reject }));
  }

  /** Make it at the broker, at the first connection and at each later one. */
  async _open() {
    const epoch = this._queen.epoch;
    try {
      const body = await this._queen.request(this._op, this._opening());
      if (this.ended) return;
      this._pause = 0;
      this._opened(body);
      this._ready(body);
    } catch (error) {
      if (epoch === this._queen.epoch && !this.ended) this._refused(error);
    }
  }

  /** The broker cannot have it now, or not at all. */
  _refused(error) {
    if (error.code === "timeout") return this._queen._drop(this._queen._socket, "a stream got no answer in time");
    if (error.status && error.status < 500 && error.status !== 429) return this._end(error);
    this._pause = Math.min((this._pause || PAUSE_MS) * 2, PAUSE_MS_MAX);
    const epoch = this._queen.epoch;
    this._queen._later(this._pause * (0.5 + Math.random() / 2), () => {
      if (epoch === this._queen.epoch && !this.ended) this._open();
    });
  }

  _opened() {}

  _lost() {}

  _closing() {
    return ["unsubscribe", { sub: this.name }];
  }

  _put(items) {
    this._buffer.push(...items);
    while (this._takers.length && this._buffer.length) {
      this._takers.shift().resolve({ done: false, value: this._take() });
    }
    if (this._handler && !this._busy) this._handle();
  }

  _take() {
    const item = this._buffer.shift();
    this._taken(item);
    return item;
  }

  _taken() {}

  async _handle() {
    this._busy = true;
    while (this._buffer.length && !this.ended) {
      const item = this._take();
      try {
        await this._handler(item, this);
      } catch (error) {
        if (!this.ended) await this._failed(item, error);
      }
    }
    this._busy = false;
  }

  async _failed(item, error) {
    console.error(`queen: the handler of ${this._op} ${this.name} failed`, error);
  }

  _end(error) {
    if (this.ended) return;
    this.ended = true;
    this.error = error;
    this._queen._streams.delete(this.name);
    this._buffer.length = 0;
    const over = error ?? new QueenError("it was closed", { code: "closed" });
    this._unready(over);
    for (const taker of this._takers.splice(0)) {
      if (error) taker.reject(error);
      else taker.resolve({ done: true, value: undefined });
    }
  }
}

/** Gives credit back for messages that nobody acknowledges, in portions. */
class Credit {
  constructor(stream, credit) {
    this._stream = stream;
    this._portion = Math.max(1, Math.floor(credit / 2));
    this._taken = 0;
  }

  taken(queen) {
    if (++this._taken < this._portion || queen.state !== "open") return;
    queen.request("credit", { sub: this._stream.name, add: this._taken }).catch(() => {}); // a new connection has all
    this._taken = 0;
  }

  reset() {
    this._taken = 0;
  }
}

export class Subscription extends Stream {
  constructor(queen, fields, handler) {
    super(queen, "subscribe", "s", fields, handler);
    this._credit = fields.autoAck ? new Credit(this, fields.credit) : null;
    /** Called with `{ leaseId, partition, partitionId, reason }` when a lease ends before its messages are settled. */
    this.onlost = null;
  }

  _opening() {
    return { sub: this.name, ...this.fields };
  }

  _event(frame) {
    if (frame.event === "lease") {
      this._drop(frame.leaseId, frame.partitionId);
      return this.onlost?.(frame);
    }
    const { queue, partition, partitionId, leaseId, consumerGroup } = frame;
    const about = { queue, partition, partitionId, leaseId, consumerGroup };
    const settling = (message, status) => {
      if (status !== "completed") this._drop(leaseId, partitionId); // that ends the lease: the rest comes again
    };
    this._put(frame.messages.map((one) => this._queen._message({ ...one, ...about }, settling)));
  }

  _drop(leaseId, partitionId) {
    const ends = (one) => one.leaseId === leaseId && (!partitionId || one.partitionId === partitionId);
    this._buffer = this._buffer.filter((one) => !ends(one));
  }

  _lost() {
    this._buffer.length = 0; // all of it comes again, under new leases
    this._credit?.reset();
  }

  _taken() {
    this._credit?.taken(this._queen);
  }

  async _failed(message, error) {
    await super._failed(message, error);
    if (!message.settled && !this.fields.autoAck) await message.nack(error).catch(() => {}); // it comes again anyway
  }
}

export class Tail extends Stream {
  constructor(queen, fields, handler) {
    super(queen, "tail", "t", fields, handler);
    this._credit = new Credit(this, fields.credit);
    this._resumes = false;
    /** The next offset of each partition: what this tail would go on at. */
    this.positions = new Map();
  }

  _opening() {
    const from = this._resumes ? Object.fromEntries(this.positions) : this.fields.from;
    return { sub: this.name, ...this.fields, from };
  }

  _opened(body) {
    if (!body?.from) return;
    this._resumes = true;
    for (const [partition, offset] of Object.entries(body.from)) this._reached(partition, offset);
  }

  _reached(partition, offset) {
    this.positions.set(partition, Math.max(offset, this.positions.get(partition) ?? 0));
  }

  _event(frame) {
    const { queue, partition, partitionId } = frame;
    if (frame.event === "gap") this._put([{ gap: true, partition, from: frame.from, to: frame.to }]);
    else if (frame.event === "messages") {
      this._put(frame.messages.map((one) => ({ ...one, queue, partition, partitionId })));
    }
  }

  _lost() {
    this._buffer.length = 0; // the positions are of what was taken: the rest comes again
    this._credit.reset();
  }

  _taken(item) {
    this._resumes = true;
    this._reached(item.partition, (item.gap ? item.to : item.offset) + 1);
    if (!item.gap) this._credit.taken(this._queen);
  }
}

export class Watch extends Stream {
  constructor(queen, fields, handler) {
    super(queen, "watch", "w", fields, handler);
    /** What is there now: key to row, of what came since `fromVersion` if that was given. */
    this.rows = new Map();
    /** The version that this watch would go on at. */
    this.version = fields.fromVersion ?? null;
  }

  _opening() {
    return { watch: this.name, ...this.fields, ...(this.version === null ? {} : { fromVersion: this.version }) };
  }

  _closing() {
    return ["unwatch", { watch: this.name }];
  }

  _opened(body) {
    if (body?.rows) this._replace(body.rows, body.version);
    else this._reached(body?.version);
  }

  _reached(version) {
    if (typeof version === "number") this.version = Math.max(version, this.version ?? 0);
  }

  _event(frame) {
    if (frame.event !== "kv") return;
    if (frame.gap) return this._replace(frame.rows ?? [], frame.version);
    for (const change of frame.changes) {
      if (change.op === "put") this.rows.set(change.key, change);
      else this.rows.delete(change.key);
      this._reached(change.version);
    }
    this._reached(frame.version);
    this._put(frame.changes);
  }

  /** Everything that is there, in place of what was: the differences are the changes. */
  _replace(rows, version) {
    const there = new Map(rows.filter((row) => row.found !== false).map((row) => [row.key, row]));
    const gone = [...this.rows.keys()].filter((key) => !there.has(key));
    const news = [...there.values()].filter((row) => this.rows.get(row.key)?.version !== row.version);
    this.rows = there;
    for (const row of news) this._reached(row.version);
    this._reached(version);
    this._put([
      ...gone.map((key) => ({ op: "delete", key, value: null, version: version ?? null, expiresAt: null })),
      ...news.map(({ key, value, version, expiresAt = null }) => ({ op: "put", key, value, version, expiresAt })),
    ]);
  }

  _put(changes) {
    super._put(changes);
    if (this._buffer.length > CHANGES_MAX) {
      this._buffer = [...new Map(this._buffer.map((change) => [change.key, change])).values()];
    }
  }
}

/**
 * `queen.kv`. Writes name their lifetime, `{ ttlSeconds: 60 }` or `{ forever: true }`, and may have `expect`, `required`,
 * and (incr) `min` and `max`. A missed condition is an answer: read `applied`.
 */
class Kv {
  constructor(queen) {
    this._queen = queen;
  }

  /** Several operations in one atomic step; the body of the answer. */
  batch(operations) {
    const safe = (op) => /^(get|check)/.test(op.op) || (op.op === "put" && !("expect" in op));
    return this._queen.request("kv", { operations }, { repeatable: operations.every(safe) });
  }

  async _one(op) {
    const body = await this.batch([op]);
    if (body.reason !== "kv_precondition") return body.results[0];
    return { op: op.op, key: op.key, applied: false, reason: body.kvReason, version: body.version, value: body.value };
  }

  get(ns, key) {
    return this._one({ op: "get", ns, key });
  }

  getPrefix(ns, prefix, options = {}) {
    return this._one({ op: "getPrefix", ns, prefix, ...options });
  }

  put(ns, key, value, options) {
    return this._one({ op: "put", ns, key, value, ...options });
  }

  putIfAbsent(ns, key, value, options) {
    return this._one({ op: "putIfAbsent", ns, key, value, ...options });
  }

  delete(ns, key, options = {}) {
    return this._one({ op: "delete", ns, key, ...options });
  }

  incr(ns, key, delta, options) {
    return this._one({ op: "incr", ns, key, delta, ...options });
  }
}

/** `queen.locks`. Who holds a permit renews it in time, or binds it to the connection: `{ session: true }`. */
class Locks {
  constructor(queen) {
    this._queen = queen;
  }

  /** Several independent operations; one answer for each. */
  async batch(operations) {
    const safe = (op) => ["get", "release"].includes(op.op) || "owner" in op;
    return (await this._queen.request("locks", { operations }, { repeatable: operations.every(safe) })).results;
  }

  /**
   * Take a permit: `acquired`, `token`, `slot`. With `waitSeconds` it waits in line; with `session` the permit lives
   * with the connection. The `lock` event of the client tells when it is lost.
   */
  async acquire(name, { ttlSeconds = 30, waitSeconds, session, ...options } = {}) {
    const op = { name, ttlSeconds, ...options };
    let permit;
    if (waitSeconds === undefined && !session) [permit] = await this.batch([{ op: "acquire", ...op }]);
    else {
      const fields = { ...op, ...(session ? { session } : {}), waitSeconds: waitSeconds ?? 0 };
      const timeoutMs = fields.waitSeconds * 1000 + this._queen._options.requestMs;
      permit = await this._queen.request("lock.acquire", fields, { timeoutMs });
      if (permit.acquired && session) this._queen._permits.set(`${name}#${permit.slot}`, permit);
    }
    return permit;
  }

  async renew(name, { token, slot = 0, ttlSeconds = 30, ...options }) {
    return (await this.batch([{ op: "renew", name, token, slot, ttlSeconds, ...options }]))[0];
  }

  async release(name, { token, slot = 0 }) {
    this._queen._permits.delete(`${name}#${slot}`);
    return (await this.batch([{ op: "release", name, token, slot }]))[0];
  }

  async get(name) {
    return (await this.batch([{ op: "get", name }]))[0];
  }
}

/** `queen.timers`. Scheduling a key again replaces its timer; the broker's clock decides when it is due. */
class Timers {
  constructor(queen) {
    this._queen = queen;
  }

  /** Several operations in one atomic step; one answer for each. */
  async batch(operations) {
    const repeatable = operations.every((op) => op.op !== "cancel");
    return (await this._queen.request("timers", { operations }, { repeatable })).results;
  }

  /** Deliver `payload`, any JSON value, into the queue after the delay. */
  async schedule(queue, timerKey, payload, { delayMs, partition, txn = newId() }) {
    const op = { op: "schedule", queue, timerKey, payload: base64(JSON.stringify(payload)), delayMs, txn };
    return (await this.batch([partition === undefined ? op : { ...op, partition }]))[0];
  }

  async cancel(queue, timerKey) {
    return (await this.batch([{ op: "cancel", queue, timerKey }]))[0];
  }

  get(queue, timerKey) {
    return this._queen.request("timer.get", { queue, timerKey }, { repeatable: true });
  }

  list(queue, options = {}) {
    return this._queen.request("timer.list", { queue, ...options }, { repeatable: true });
  }
}

function socketUrl(url) {
  const here = new URL(import.meta.url);
  const served = here.protocol.startsWith("http") ? here.href.replace(/\/static\/[^/]*$/, "") : "http://127.0.0.1:6632";
  const address = new URL(url ?? served, globalThis.location?.href);
  address.protocol = address.protocol.replace("http", "ws");
  if (!address.pathname.endsWith("/api/v1/ws")) address.pathname = `${address.pathname.replace(/\/$/, "")}/api/v1/ws`;
  address.search = address.hash = "";
  return address.href;
}

function happened(name, detail) {
  return Object.assign(new Event(name), { detail });
}

function newId() {
  if (crypto.randomUUID) return crypto.randomUUID(); // pages from elsewhere than localhost have it with TLS only
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64(text) {
  let bytes = "";
  for (const byte of new TextEncoder().encode(text)) bytes += String.fromCharCode(byte);
  return btoa(bytes);
}

function base64url(text) {
  return base64(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
