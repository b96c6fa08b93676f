// Advance: what the code of a routine did since its last advance was sent.
import type { AdvanceMessage, Item, NewRequest, RoutineEnd } from "./protocol.ts";

export class Advance {
  /** Successes that the code was given before they were durable. */
  functions: NonNullable<AdvanceMessage["functions"]> = [];
  readonly items: Item[] = [];
  readonly requests: NewRequest[] = [];
  /** Positions of requests whose outcomes are not needed. */
  readonly cancelled: string[] = [];
  end: RoutineEnd | undefined;

  /** The request is not sent. False: it was. */
  withdraw(position: string): boolean {
    const at = this.requests.findIndex((made) => made.position === position);
    if (at >= 0) this.requests.splice(at, 1);
    return at >= 0;
  }

  /** `isOpen`: has the request at this position no outcome? */
  message(routine: number, delivered: number, isOpen: (position: string) => boolean): AdvanceMessage {
    const message: AdvanceMessage = { type: "advance", routine, delivered };
    if (this.functions.length > 0) message.functions = this.functions;
    if (this.items.length > 0) message.items = this.items;
    if (this.requests.length > 0) message.requests = this.requests;
    const cancelled = this.cancelled.filter(isOpen);
    if (cancelled.length > 0) message.cancelled = cancelled;
    if (this.end !== undefined) message.end = this.end;
    return message;
  }
}
