// Session: the frames of a worker. It connects, numbers frames, keeps them until they are acknowledged, and sends them
// again after a lost connection, so that frames arrive once and in order while both processes live.
//
//             connected                 welcome
//   waiting -------------> greeting --------------> open
//      ^                       |                      |
//      '-----------------------'----------------------'   the connection is lost: back-off of 50 ms to 5 s
//
// A session that the server does not resume is gone: `onSession` states it before the first message of the new one.
import { performance } from "node:perf_hooks";
import { ConnectionFailed } from "./errors.ts";
import { isObject, parse } from "./json.ts";
import {
  FRAME_MAX,
  SUBPROTOCOL,
  type Frame,
  type Hello,
  type ServerMessage,
  type Welcome,
  type WorkerMessage,
} from "./protocol.ts";
import { WebSocketClient } from "./websocket.ts";

const BACKOFF_MIN_MS = 50;
const BACKOFF_MAX_MS = 5_000;
const GREETING_MS = 10_000;
const BATCH_MAX = 8 << 20; // bytes of a frame with several messages
const SUSPEND_MS = 1_000; // a wall clock that ran this much ahead of the steady one counts

export interface SessionOptions {
  /** The server, for each connection. */
  address: () => { socket?: string | undefined; url: string };
  api_key?: string | undefined;
}

export interface SessionListener {
  /** The first message of each connection, without `resume`. */
  hello(): Hello;
  /** A session began, or was resumed. `isNew`: the one before, and all of its routines and calls, are gone. */
  onSession(welcome: Welcome, isNew: boolean): void;
  onMessage(message: ServerMessage, sentAt: Moment): void;
  /** This message does not fit into a frame. */
  onTooLarge(message: WorkerMessage): void;
  /** A connection was lost or could not be made. */
  onTrouble(error: ConnectionFailed): void;
}

/** A moment by two clocks: the steady one may pause while the machine is suspended. */
export interface Moment {
  steady: number;
  wall: number;
}

export function moment(): Moment {
  return { steady: performance.now(), wall: Date.now() };
}

/** Milliseconds since then, also those for which the machine was suspended. */
export function elapsedSince(then: Moment): number {
  const now = moment();
  const steady = now.steady - then.steady;
  const wall = now.wall - then.wall;
  return wall > steady + SUSPEND_MS ? wall : steady;
}

interface KeptFrame {
  number: number;
  ack: number; // also when it is sent again
  messages: string; // the JSON of its messages, without brackets
  sentAt: Moment;
}

export class Session {
  private readonly options: SessionOptions;
  private readonly listener: SessionListener;
  private connection: WebSocketClient | undefined;
  private generation = 0; // of connections
  private state: "waiting" | "greeting" | "open" | "closed" = "waiting";
  private id: string | undefined; // of the session
  private limits = { heartbeat_ms: 2_000, silent_ms: 15_000, resume_ms: 20_000 };
  private batch: WorkerMessage[] = [];
  private kept: KeptFrame[] = []; // not acknowledged
  private sent = 0; // the last number given
  private received = 0; // the last frame of the server that was processed
  private ackSentAt: Moment = moment(); // of the last frame of ours that the server acknowledged
  private backoffMs = BACKOFF_MIN_MS;
  private lastSent = 0;
  private lastReceived = 0;
  private timer: NodeJS.Timeout | undefined;
  private beat: NodeJS.Timeout | undefined;
  private onClosed: (() => void) | undefined;

  constructor(options: SessionOptions, listener: SessionListener) {
    this.options = options;
    this.listener = listener;
  }

  /** Connects, and connects again until `close`. */
  start(): void {
    this.connect();
  }

  /** When the newest frame that the server has acknowledged was sent: milliseconds of the steady clock. */
  get acknowledgedAt(): number {
    return this.ackSentAt.steady;
  }

  get isOpen(): boolean {
    return this.state === "open";
  }

  /** A part of the next frame. */
  add(message: WorkerMessage): void {
    this.batch.push(message);
  }

  /** Sends what was added as one frame, or as several if it is large. */
  flush(): void {
    if (this.batch.length === 0 || this.state === "closed" || this.id === undefined) return;
    const messages = this.batch;
    this.batch = [];
    let texts: string[] = [];
    let bytes = 0;
    for (const message of messages) {
      const text = JSON.stringify(message);
      const size = text.length < FRAME_MAX / 3 ? text.length : Buffer.byteLength(text);
      if (size > FRAME_MAX - 100) {
        this.listener.onTooLarge(message);
        continue;
      }
      if (bytes + size > BATCH_MAX && texts.length > 0) {
        this.sendFrame(texts);
        texts = [];
        bytes = 0;
      }
      texts.push(text);
      bytes += size;
    }
    if (texts.length > 0) this.sendFrame(texts);
    if (this.batch.length > 0) this.flush(); // of onTooLarge
  }

  /** Ends the connection with 1000. Resolves when it is closed. */
  close(): Promise<void> {
    if (this.state === "closed") return Promise.resolve();
    this.state = "closed";
    this.stopTimers();
    const connection = this.connection;
    if (connection === undefined) return Promise.resolve();
    return new Promise((resolve) => {
      this.onClosed = resolve;
      connection.close(1000, "the worker stops");
    });
  }

  // ---------------------------------------------------------------- connecting

  private connect(): void {
    if (this.state === "closed") return;
    const generation = ++this.generation;
    const key = this.options.api_key;
    WebSocketClient.open(
      {
        ...this.options.address(),
        path: "/api/worker",
        subprotocol: SUBPROTOCOL,
        messageMax: FRAME_MAX,
        headers: key === undefined || key === "" ? {} : { Authorization: `Bearer ${key}` },
      },
      {
        onMessage: (text) => {
          if (generation === this.generation) this.onText(text);
        },
        onAlive: () => {
          if (generation === this.generation) this.lastReceived = performance.now();
        },
        onClose: (code, reason) => {
          if (this.state === "closed") return this.onClosed?.();
          if (generation === this.generation)
            this.onLost(
              new ConnectionFailed("unavailable", `closed by the server or the network (${code}): ${reason}`),
            );
        },
      },
    ).then(
      (connection) => {
        if (generation !== this.generation || this.state === "closed") return connection.close();
        this.greet(connection);
      },
      (error: unknown) => {
        if (generation !== this.generation) return;
        this.onLost(error instanceof ConnectionFailed ? error : new ConnectionFailed("unavailable", String(error)));
      },
    );
  }

  private helloSentAt: Moment = moment();

  private greet(connection: WebSocketClient): void {
    this.connection = connection;
    this.state = "greeting";
    this.lastReceived = performance.now();
    const hello: WorkerMessage = { type: "hello", ...this.listener.hello() };
    // The frames that resume a session are not counted: their number is 0.
    if (this.id !== undefined) hello.resume = { session: this.id, ack: this.received };
    this.helloSentAt = moment();
    this.write({ number: this.id === undefined ? 1 : 0, ack: this.received, messages: JSON.stringify(hello) });
    this.timer = setTimeout(() => this.drop("no welcome within 10 s"), GREETING_MS);
  }

  private onLost(error: ConnectionFailed): void {
    if (this.state === "closed") return;
    this.stopTimers();
    this.connection = undefined;
    this.state = "waiting";
    this.listener.onTrouble(error);
    const wait = this.backoffMs * (0.5 + Math.random() / 2);
    this.backoffMs = Math.min(this.backoffMs * 2, BACKOFF_MAX_MS);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  private drop(reason: string): void {
    const connection = this.connection;
    this.generation++;
    connection?.destroy();
    this.onLost(new ConnectionFailed("unavailable", reason));
  }

  private stopTimers(): void {
    clearTimeout(this.timer);
    clearInterval(this.beat);
  }

  // ---------------------------------------------------------------- frames

  private sendFrame(texts: string[]): void {
    const frame: KeptFrame = {
      number: ++this.sent,
      ack: this.received,
      messages: texts.join(","),
      sentAt: moment(),
    };
    this.kept.push(frame);
    if (this.state === "open") this.write(frame);
  }

  private write({ number, ack, messages }: { number: number; ack: number; messages: string }): void {
    this.lastSent = performance.now();
    this.connection?.send(`{"frame":${number},"ack":${ack},"messages":[${messages}]}`);
  }

  private onText(text: string): void {
    let frame: Frame<ServerMessage>;
    try {
      const parsed = parse(text);
      if (
        !isObject(parsed) ||
        !Number.isSafeInteger(parsed["frame"]) ||
        !Number.isSafeInteger(parsed["ack"]) ||
        !Array.isArray(parsed["messages"])
      ) {
        throw new SyntaxError("it has no frame, ack and messages");
      }
      frame = parsed as unknown as Frame<ServerMessage>;
    } catch (error) {
      return this.drop(`a message of the server is not a frame: ${String(error)}`);
    }
    if (this.state === "greeting") return this.onWelcome(frame);
    if (this.state !== "open" || frame.frame <= this.received) return; // processed before
    if (frame.frame !== this.received + 1)
      return this.drop(`frame ${frame.frame} of the server follows frame ${this.received}`);
    this.onAck(frame.ack);
    this.received = frame.frame; // before anything that may throw: no frame is processed twice
    this.process(frame.messages);
  }

  private process(messages: ServerMessage[]): void {
    for (const message of messages) {
      if (typeof message?.type === "string" && message.type !== "welcome") {
        this.listener.onMessage(message, this.ackSentAt);
      }
    }
  }

  private onAck(ack: number): void {
    for (;;) {
      const first = this.kept[0];
      if (first === undefined || first.number > ack) return;
      this.ackSentAt = first.sentAt;
      this.kept.shift();
    }
  }

  private onWelcome(frame: Frame<ServerMessage>): void {
    const welcome = frame.messages.find((message): message is Welcome => message?.type === "welcome");
    if (welcome === undefined) {
      const refusal = frame.messages.find((message) => message?.type === "error");
      return this.drop(
        refusal ? `the server refused the hello: ${refusal.code}: ${refusal.message}` : "the server sent no welcome",
      );
    }
    clearTimeout(this.timer);
    this.state = "open";
    this.backoffMs = BACKOFF_MIN_MS;
    this.limits = { ...this.limits, ...welcome.limits };
    const isNew = this.id === undefined || welcome.resumed !== true;
    this.id = welcome.session;
    if (isNew) {
      this.kept = [];
      this.batch = [];
      this.sent = 1; // the hello
      this.received = frame.frame;
      this.ackSentAt = this.helloSentAt;
    } else {
      // Permits that come again count from the frame that they acknowledged at first.
      while (this.kept[0] !== undefined && this.kept[0].number <= frame.ack) this.kept.shift();
    }
    this.startHeartbeat();
    this.listener.onSession(welcome, isNew);
    if (!isNew) for (const kept of this.kept) this.write(kept);
    this.process(frame.messages);
    this.flush();
  }

  private startHeartbeat(): void {
    clearInterval(this.beat);
    const every = Math.max(10, this.limits.heartbeat_ms / 2);
    this.beat = setInterval(() => {
      const now = performance.now();
      if (now - this.lastReceived > this.limits.silent_ms)
        return this.drop(`the server was silent for ${this.limits.silent_ms} ms`);
      this.connection?.ping();
      if (now - this.lastSent < this.limits.heartbeat_ms - every - 1) return;
      this.add({ type: "heartbeat" });
      this.flush();
    }, every);
  }
}
