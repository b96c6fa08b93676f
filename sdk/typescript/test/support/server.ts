// A scripted server: speaks raw frames of the worker protocol over WebSocket, on a Unix socket or a TCP port.
import { createHash } from "node:crypto";
import { rmSync } from "node:fs";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Frame, ServerMessage, Welcome, WorkerMessage } from "../../src/protocol.ts";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const WAIT_MS = 60_000; // for anything that must happen eventually
export type WorkerFrame = Frame<WorkerMessage & Record<string, unknown>>;

/** A queue whose reader waits. */
class Queue<T> {
  private readonly items: T[] = [];
  private readonly readers: ((item: T) => void)[] = [];
  push(item: T): void {
    const reader = this.readers.shift();
    if (reader) reader(item);
    else this.items.push(item);
  }
  async next(what: string, ms = WAIT_MS): Promise<T> {
    const item = this.items.shift();
    if (item !== undefined) return item;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${what} within ${ms} ms`)), ms);
      this.readers.push((found) => {
        clearTimeout(timer);
        resolve(found);
      });
    });
  }
  get size(): number {
    return this.items.length;
  }
}

/** One connection of a worker. */
export class Connection {
  readonly request: IncomingMessage;
  private readonly stream: Duplex;
  private held = Buffer.alloc(0);
  private readonly frames = new Queue<WorkerFrame>();
  private readonly controls = new Queue<{ opcode: number; payload: Buffer }>();
  private readonly onClosed: (() => void)[] = [];
  isClosed = false;
  received = 0;
  onFrame: ((frame: WorkerFrame) => boolean) | undefined;

  constructor(request: IncomingMessage, stream: Duplex) {
    this.request = request;
    this.stream = stream;
    stream.on("data", (bytes: Buffer) => this.read(bytes));
    stream.on("error", () => {});
    stream.on("end", () => stream.end());
    stream.on("close", () => {
      this.isClosed = true;
      for (const resolve of this.onClosed) resolve();
    });
  }

  /** The next frame of the worker. */
  next(ms?: number): Promise<WorkerFrame> {
    return this.frames.next("frame of the worker", ms);
  }

  /** The next message that is not a heartbeat, with its frame. */
  async message(type?: string): Promise<WorkerMessage & Record<string, unknown>> {
    for (;;) {
      const queued = this.queue.shift();
      if (queued === undefined) {
        this.queue.push(...(await this.next()).messages);
        continue;
      }
      if (queued.type === "heartbeat" || (type !== undefined && queued.type !== type)) continue;
      return queued;
    }
  }
  private readonly queue: (WorkerMessage & Record<string, unknown>)[] = [];

  control(): Promise<{ opcode: number; payload: Buffer }> {
    return this.controls.next("control frame");
  }

  closed(): Promise<void> {
    return this.isClosed ? Promise.resolve() : new Promise((resolve) => this.onClosed.push(resolve));
  }

  /** Sends a frame of the protocol. */
  send(frame: number, ack: number, ...messages: (ServerMessage | Record<string, unknown>)[]): void {
    this.sendText(JSON.stringify({ frame, ack, messages }));
  }

  sendText(text: string): void {
    this.sendRaw(0x81, Buffer.from(text));
  }

  /** A WebSocket frame with this first byte. */
  sendRaw(first: number, payload: Buffer): void {
    const extended = payload.length < 126 ? 0 : payload.length < 65_536 ? 2 : 8;
    const head = Buffer.alloc(2 + extended);
    head[0] = first;
    head[1] = extended === 0 ? payload.length : extended === 2 ? 126 : 127;
    if (extended === 2) head.writeUInt16BE(payload.length, 2);
    if (extended === 8) head.writeBigUInt64BE(BigInt(payload.length), 2);
    this.stream.write(Buffer.concat([head, payload]));
  }

  /** Bytes as they are, for example a part of a frame. */
  sendBytes(bytes: Buffer): void {
    this.stream.write(bytes);
  }

  /** Cuts the connection. */
  cut(): void {
    this.isClosed = true;
    this.stream.destroy();
  }

  private read(bytes: Buffer): void {
    this.held = Buffer.concat([this.held, bytes]);
    for (;;) {
      if (this.held.length < 2) return;
      const short = (this.held[1] as number) & 0x7f;
      const isMasked = ((this.held[1] as number) & 0x80) !== 0;
      const extended = short < 126 ? 0 : short === 126 ? 2 : 8;
      if (this.held.length < 2 + extended + 4) return;
      const length =
        extended === 0 ? short : extended === 2 ? this.held.readUInt16BE(2) : Number(this.held.readBigUInt64BE(2));
      const start = 2 + extended + 4;
      if (this.held.length < start + length) return;
      if (!isMasked) throw new Error("a frame of a client is masked");
      const mask = this.held.subarray(2 + extended, start);
      const payload = Buffer.from(this.held.subarray(start, start + length));
      for (let i = 0; i < length; i++) payload[i] = (payload[i] as number) ^ (mask[i & 3] as number);
      const opcode = (this.held[0] as number) & 0x0f;
      this.held = this.held.subarray(start + length);
      if (opcode === 1) this.onText(payload.toString());
      else if (opcode === 9) this.sendRaw(0x8a, payload);
      else this.controls.push({ opcode, payload });
      if (opcode === 8) {
        this.sendRaw(0x88, payload);
        this.stream.end();
      }
    }
  }

  private onText(text: string): void {
    const frame = JSON.parse(text) as WorkerFrame;
    this.received = Math.max(this.received, frame.frame);
    if (this.onFrame?.(frame) !== true) this.frames.push(frame);
  }
}

export const LIMITS = { heartbeat_ms: 2_000, silent_ms: 15_000, resume_ms: 20_000 };

export function welcome(session: string, more: Partial<Welcome> = {}): Welcome {
  return { type: "welcome", session, now: "2026-01-01T00:00:00.000000Z", limits: LIMITS, agents: [], ...more };
}

export class ScriptedServer {
  private readonly server: Server;
  private readonly connections = new Queue<Connection>();
  readonly socket: string | undefined;
  refusesWith: string | undefined; // the status line of the upgrade's answer
  private readonly all: Connection[] = [];
  onConnection: ((connection: Connection) => void) | undefined;

  private constructor(server: Server, socket: string | undefined) {
    this.server = server;
    this.socket = socket;
    server.on("upgrade", (request, stream) => this.upgrade(request, stream));
  }

  static async listen(kind: "socket" | "tcp" = "socket"): Promise<ScriptedServer> {
    const server = createServer((_, response) => response.writeHead(404).end());
    const socket =
      kind === "socket"
        ? join(tmpdir(), `aetheris-test-${process.pid}-${Math.random().toString(36).slice(2)}.sock`)
        : undefined;
    await new Promise<void>((resolve) =>
      socket ? server.listen(socket, resolve) : server.listen(0, "127.0.0.1", resolve),
    );
    return new ScriptedServer(server, socket);
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** The next connection of a worker. */
  accept(ms?: number): Promise<Connection> {
    return this.connections.next("connection", ms);
  }

  async close(): Promise<void> {
    for (const connection of this.all) connection.cut();
    await new Promise((resolve) => this.server.close(resolve));
    if (this.socket) rmSync(this.socket, { force: true });
  }

  private upgrade(request: IncomingMessage, stream: Duplex): void {
    if (this.refusesWith !== undefined) {
      stream.end(`HTTP/1.1 ${this.refusesWith}\r\nContent-Length: 0\r\n\r\n`);
      return;
    }
    const key = String(request.headers["sec-websocket-key"]);
    const accept = createHash("sha1")
      .update(key + GUID)
      .digest("base64");
    stream.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: aetheris.worker.1\r\n\r\n`,
    );
    const connection = new Connection(request, stream);
    this.all.push(connection);
    if (this.onConnection) this.onConnection(connection);
    else this.connections.push(connection);
  }
}
