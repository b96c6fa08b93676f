// The protocol of SPEC §4–6, §10 and §11 for one job, as the runtime follows it: checked by `./dev model`.
//
// One store, two workers, one job with three steps side by side: an at_most_once call, an idempotent call, a wait for
// a signal. Around them: a clock that ends leases, a network that loses, delays and refuses, a sender of signals, an
// operator who checks the downstream before resolving a call with an unknown outcome. Each `atomic` is one transaction
// of the store or one move of a process; a worker can die, stall or lose its lease between any two of them.
// formal/README.md has the functions of each move, what is left out, and why.
//
//   -D FAULTS=n     crashes, lost leases, lost answers, refusals, drains, … altogether
//   -D SPLIT        durability `split`: the effect is recorded in a transaction of its own, before the log
//   -D ONLY_A       the idempotent call is done from the beginning
//   -D ONLY_B       the at_most_once call is
//   -D NO_WAIT      the wait is
//   -D EXPIRES      the wait may expire
//   -D TWO_OPERATORS  two operators, independent of each other
//   -D NO_OPERATOR  no operator resolves a call
//   -D ONLY=n       check only this promise (below); without it all
//   -D <VARIANT>    the protocol with one of its rules removed (formal/README.md has the list)

#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef SENDS
#define SENDS 2 // a sender that received no response sends the same signal again
#endif
#ifndef ONLY
#define ONLY 0
#endif

// ---------------------------------------------------------------- promises

bool at_most_once = true;   // 1 the at_most_once call arrives at most once
bool fenced = true;         // 2 only the attempt that holds the lease writes, to the log as it read it
bool recorded_once = true;  // 3 nothing is sent after a success was recorded
bool declared_first = true; // 4 nothing is sent whose declaration is not durable
bool one_key = true;        // 5 all sends of a call carry the key of its first declaration
bool signal_once = true;    // 6 a signal is consumed once
bool none_left = true;      // 7 a job without a lease has an empty inbox
bool signal_first = true;   // 8 an expiry loses to a signal that was accepted before it
bool settled_first = true;  // 9 `not_happened` is recorded only when no request can still arrive
bool done_for_real = true;  // 10 a completed job's calls have arrived

// Inside d_steps; a promise that is not checked may break.
#define PROMISE(number, promise, condition) \
  if \
  :: (condition) || (ONLY != 0 && ONLY != number) \
  :: else -> promise = false; assert(promise) \
  fi

// ---------------------------------------------------------------- the store
//
// Attempts, epochs and seqs are compared for equality and never for anything else, so that their values need not be
// kept: worker w's attempt is w + 1 for as long as it knows of it and GONE in everything it wrote once it has
// forgotten; `expected_seq is the last` is a flag which every write to the log clears for all other readers.

#define GONE 9
#define A 0 // the at_most_once call
#define B 1 // the idempotent call

// Statuses of the job.
#define QUEUED 0
#define RUNNING 1
#define WAITING 2
#define PARKED 3
#define COMPLETED 4

// Phases of a call (engine::StepPhase; settled has an outcome).
#define READY 0
#define CALLING 1     // a try is declared and not finished
#define FAILED_TRY 2  // the newest try failed definitely
#define UNKNOWN_TRY 3 // the newest try was cut off: it may have happened
#define DOUBT 4       // an operator must resolve it
#define REDO 5        // an operator resolved it: not_happened
#define COMMITTED 6

// The wait.
#define UNOPENED 0
#define OPEN 1
#define SIGNALLED 2
#define TIMED_OUT 3

// What is known of a try: the content of an effect record, and a worker's view of its own call.
#define NONE 0
#define SUCCESS 1
#define FAILURE 2  // definite
#define UNKNOWN 3
#define TO_SEND 4  // declared, not yet sent
#define TOO_LATE 5 // send_by has passed: it will be withdrawn
#define SENT 6

// The log of the job, folded.
typedef Log {
  byte status;
  byte wait;
  byte phase[2];
  byte tries[2]; // the newest try
  byte by[2];    // the attempt that declared it
  byte key[2];   // the external key: the try whose attempt is in it
  bool open[2];  // started, not finished
};
Log log;
byte claim;    // the attempt of the claim row; 0 = none
bool live;     // its lease has not ended

bool inbox_signal;
byte inbox_resolve; // NONE, HAPPENED, NOT_HAPPENED
byte inbox_try;     // the try that the resolution is about
#define HAPPENED 1
#define NOT_HAPPENED 2

byte effect[2]; // effect record of the newest try while that is undecided; SUCCESS or FAILURE

// ---------------------------------------------------------------- the downstream

byte on_the_way[2]; // requests without a listener that may still arrive
byte arrived[2];
byte arrived_key[2];
bool recorded[2]; // a success is in the log, or in the effect record of an undecided try
bool accepted;    // the signal was acknowledged
byte consumed;
bool due;         // the wait's expiry has come
bool sender_current, operator_current[2]; // the log has not grown since they read it
byte faults = FAULTS;

// ---------------------------------------------------------------- workers

#define IDLE 0
#define CLAIMED 1 // the log is to be read
#define HOLDING 2
#define UNSURE 3  // the answer of its commit was lost
#define LOST 4    // knows that it has lost the lease
#define CHECKED 5 // only when the check and the write are two transactions

Log mine[2]; // the log as this worker sees it
byte at[2];  // where it is
byte me[2];  // its attempt; 0 = none
bool current[2]; // the log has not grown since it was read
bool begun[2]; // job_running is in the log
bool saw_signal[2];
byte saw_resolve[2];
byte saw_try[2];
byte my[4];    // its calls in flight
byte my_try[4];
#define MY(w, c) my[2 * (w) + (c)]
#define MY_TRY(w, c) my_try[2 * (w) + (c)]

// Of one transition; meaningless between two.
hidden byte c;
hidden byte release, reads_inbox, closes[2], declares[2], refused;

inline copy_log(to, from) {
  to.status = from.status;
  to.wait = from.wait;
  to.phase[A] = from.phase[A];
  to.phase[B] = from.phase[B];
  to.tries[A] = from.tries[A];
  to.tries[B] = from.tries[B];
  to.by[A] = from.by[A];
  to.by[B] = from.by[B];
  to.key[A] = from.key[A];
  to.key[B] = from.key[B];
  to.open[A] = from.open[A];
  to.open[B] = from.open[B]
}

inline forget_log(w) {
  c = 0;
  do
  :: c < 2 ->
    mine[w].phase[c] = 0;
    mine[w].tries[c] = 0;
    mine[w].by[c] = 0;
    mine[w].key[c] = 0;
    mine[w].open[c] = false;
    c++
  :: else -> break
  od;
  mine[w].status = 0;
  mine[w].wait = 0;
  current[w] = false;
  begun[w] = false;
  saw_signal[w] = false;
  saw_resolve[w] = NONE;
  saw_try[w] = 0
}

// The worker has lost the lease: it writes only the outcomes of its calls.
inline lose(w) {
  forget_log(w);
  c = 0;
  do
  :: c < 2 ->
    if
    :: MY(w, c) != SENT && MY(w, c) != SUCCESS && MY(w, c) != FAILURE -> MY(w, c) = NONE; MY_TRY(w, c) = 0
    :: else
    fi;
    c++
  :: else -> break
  od;
  at[w] = LOST
}

// A worker forgets a job. Its requests on the way may still arrive.
inline forget(w) {
  c = 0;
  do
  :: c < 2 ->
    if
    :: MY(w, c) == SENT -> on_the_way[c]++
    :: else
    fi;
    MY(w, c) = NONE;
    MY_TRY(w, c) = 0;
    if
    :: log.by[c] == w + 1 -> log.by[c] = GONE
    :: else
    fi;
    if
    :: mine[1 - (w)].by[c] == w + 1 -> mine[1 - (w)].by[c] = GONE
    :: else
    fi;
    c++
  :: else -> break
  od;
  forget_log(w);
  me[w] = 0;
  at[w] = IDLE
}

#define ended (log.status == COMPLETED)
#define may_run (log.status == QUEUED || log.status == RUNNING)
#define answered(w, c) (MY(w, c) == SUCCESS || MY(w, c) == FAILURE || MY(w, c) == UNKNOWN)
#define in_flight(w, c) (MY(w, c) == TO_SEND || MY(w, c) == TOO_LATE || MY(w, c) == SENT)

// Deadline and grace of a try have passed: by then every sent request has arrived or is lost. This is the assumption
// behind `grace`, and the only one about time.
#define settled(c) (on_the_way[c] == 0 && MY(0, c) != SENT && MY(1, c) != SENT)

// A call declared now could not be sent in time: send_by is never later than the lease's end.
#define out_of_time(w) (claim == me[w] && !live)

// decide has a next move for this call.
#define wants(w, c) \
  ((mine[w].phase[c] == READY || mine[w].phase[c] == FAILED_TRY || mine[w].phase[c] == REDO || \
    (mine[w].phase[c] == UNKNOWN_TRY && c == B) || \
    (mine[w].phase[c] == CALLING && mine[w].by[c] != me[w] && c == B)) && !out_of_time(w) || \
   (mine[w].phase[c] == UNKNOWN_TRY && c == A) || \
   (mine[w].phase[c] == CALLING && mine[w].by[c] != me[w] && c == A))

#define is_blocked(w, c) (mine[w].phase[c] == DOUBT || mine[w].phase[c] == COMMITTED)
#define is_idle(w) (is_blocked(w, A) && is_blocked(w, B) && mine[w].wait != UNOPENED)

// split: an answer goes into the effect store before it goes into the log.
#ifdef SPLIT
#define to_record(w, c) \
  ((MY(w, c) == SUCCESS || MY(w, c) == FAILURE) && effect[c] == NONE && log.tries[c] == MY_TRY(w, c))
#else
#define to_record(w, c) false
#endif

#define has_work(w) \
  (!begun[w] || answered(w, A) || answered(w, B) || saw_signal[w] || saw_resolve[w] != NONE || \
   wants(w, A) || wants(w, B) || mine[w].wait == UNOPENED || (due && mine[w].wait == OPEN) || is_idle(w))

// [load] The log, the inbox and the effect records in one transaction; what an earlier attempt could not log.
inline read_log(w) {
  copy_log(mine[w], log);
  mine[w].status = RUNNING;
  current[w] = true;
  saw_signal[w] = inbox_signal;
  saw_resolve[w] = inbox_resolve;
  saw_try[w] = inbox_try;
  c = 0;
  do
  :: c < 2 ->
    if
    :: effect[c] != NONE && mine[w].open[c] && (mine[w].phase[c] == CALLING || mine[w].phase[c] == DOUBT) &&
       !in_flight(w, c) && !answered(w, c) ->
      mine[w].open[c] = false;
      if
      :: effect[c] == SUCCESS -> mine[w].phase[c] = COMMITTED
      :: else -> mine[w].phase[c] = FAILED_TRY
      fi
    :: else
    fi;
    c++
  :: else -> break
  od;
  at[w] = HOLDING
}

// [add_outcomes] The observed outcomes of the calls.
inline add_outcomes(w) {
  c = 0;
  do
  :: c < 2 ->
    if
    :: answered(w, c) && mine[w].open[c] && mine[w].tries[c] == MY_TRY(w, c) ->
      mine[w].open[c] = false;
      if
      :: MY(w, c) == SUCCESS -> mine[w].phase[c] = COMMITTED
      :: MY(w, c) == FAILURE -> mine[w].phase[c] = FAILED_TRY
      :: else -> mine[w].phase[c] = UNKNOWN_TRY
      fi
    :: else
    fi;
    c++
  :: else -> break
  od
}

// [apply_resolve] A resolution changes the log `to` if it is about the try with the unknown outcome, and that try has
// settled.
#ifdef UNPINNED_RESOLVE
#define about(try, tries) true
#else
#define about(try, tries) (try == tries)
#endif
#ifdef NOT_HAPPENED_BEFORE_SETTLED
#define is_settled true
#else
#define is_settled settled(A)
#endif
inline apply_resolve(to, resolution, try) {
  if
  :: to.phase[A] == DOUBT && about(try, to.tries[A]) && resolution == HAPPENED ->
    to.phase[A] = COMMITTED;
    to.open[A] = false;
    closes[A] = true
  :: to.phase[A] == DOUBT && about(try, to.tries[A]) && resolution == NOT_HAPPENED && is_settled ->
    to.phase[A] = REDO;
    to.open[A] = false;
    closes[A] = true;
    PROMISE(9, settled_first, settled(A))
  :: else // no unknown outcome, or too early: dropped, with a warning
  fi
}

// [add_requests] The requests of the inbox, then timers that are due.
inline add_requests(w) {
  if
  :: saw_signal[w] && mine[w].wait == OPEN -> mine[w].wait = SIGNALLED
  :: else // none, or a duplicate
  fi;
  apply_resolve(mine[w], saw_resolve[w], saw_try[w]);
  if
  :: due && mine[w].wait == OPEN ->
    mine[w].wait = TIMED_OUT;
#ifndef EXPIRY_WITHOUT_INBOX_READ
    reads_inbox = true
#endif
  :: else
  fi
}

// [declare] Another try, under the key of the first.
inline declare(w) {
  mine[w].tries[c]++;
  mine[w].by[c] = me[w];
#ifdef NEW_KEY_PER_ATTEMPT
  mine[w].key[c] = mine[w].tries[c];
#else
  mine[w].key[c] = 1;
#endif
  mine[w].open[c] = true;
  mine[w].phase[c] = CALLING;
  declares[c] = true
}

// [decide] What follows.
inline decide(w) {
  c = 0;
  do
  :: c < 2 ->
    if
    :: !wants(w, c)
    :: wants(w, c) && mine[w].phase[c] == CALLING && c == B ->
      closes[c] = true; // Decider::handle_orphaned_try: a resend decides the earlier try
      declare(w)
#ifdef BLIND_RESEND
    :: wants(w, c) && mine[w].phase[c] == CALLING && c == A ->
      closes[c] = true;
      declare(w)
#else
    :: wants(w, c) && mine[w].phase[c] == CALLING && c == A ->
      closes[c] = true; // a recorded outcome needs no operator
      mine[w].phase[c] = DOUBT
#endif
    :: wants(w, c) && mine[w].phase[c] == UNKNOWN_TRY && c == A -> mine[w].phase[c] = DOUBT
    :: else -> declare(w)
    fi;
    c++
  :: else -> break
  od;
  if
  :: mine[w].wait == UNOPENED -> mine[w].wait = OPEN
  :: else
  fi;
  if
  :: is_idle(w) -> // Decider::become_idle, complete_job
    release = true;
    if
    :: mine[w].wait == OPEN -> mine[w].status = WAITING
    :: mine[w].wait != OPEN && (mine[w].phase[A] == DOUBT || mine[w].phase[B] == DOUBT) -> mine[w].status = PARKED
    :: else -> mine[w].status = COMPLETED
    fi
  :: else
  fi
}

// [refuse] What can refuse a commit: the fence, the seq, an effect that arrived, an inbox that is not empty.
inline find_refusal(w) {
  refused = true;
  if
#ifndef CHECK_THEN_WRITE
  :: claim != me[w] -> lose(w)
  :: claim == me[w] && !current[w] -> at[w] = CLAIMED
#endif
#ifndef SLOT_NOT_CLOSED
  :: claim == me[w] && current[w] && (closes[A] && effect[A] != NONE || closes[B] && effect[B] != NONE) ->
    at[w] = CLAIMED
#endif
  :: claim == me[w] && current[w] && !(closes[A] && effect[A] != NONE || closes[B] && effect[B] != NONE) &&
#ifdef RELEASE_WITHOUT_INBOX_CHECK
     reads_inbox &&
#else
     (release || reads_inbox) &&
#endif
     (inbox_signal && !saw_signal[w] || inbox_resolve != NONE && saw_resolve[w] == NONE) ->
    at[w] = CLAIMED
  :: else -> refused = false
  fi
}

// The effects of a transaction that decides an unknown outcome or records a result.
inline wrote(from, to) {
  c = 0;
  do
  :: c < 2 ->
    if
    :: from.phase[c] == COMMITTED && to.phase[c] != COMMITTED -> recorded[c] = true
    :: else
    fi;
    if
    :: !from.open[c] || from.tries[c] != to.tries[c] -> effect[c] = NONE
    :: else
    fi;
    c++
  :: else -> break
  od;
  if
  :: from.wait == SIGNALLED && to.wait == OPEN ->
    consumed++;
    PROMISE(6, signal_once, consumed <= 1)
  :: from.wait == TIMED_OUT && to.wait == OPEN ->
    PROMISE(8, signal_first, !inbox_signal)
  :: else
  fi
}

// The log has grown: every earlier read of it is old.
inline grown() {
  current[0] = false;
  current[1] = false;
  sender_current = false;
  operator_current[0] = false;
  operator_current[1] = false
}

// [write] The commit, and what the worker knows after it.
inline write(w) {
  PROMISE(2, fenced, claim == me[w] && current[w]);
  wrote(mine[w], log);
  copy_log(log, mine[w]);
  grown();
  current[w] = true;
  begun[w] = true;
  if
  :: saw_signal[w] -> inbox_signal = false; saw_signal[w] = false
  :: else
  fi;
  if
  :: saw_resolve[w] != NONE -> inbox_resolve = NONE; inbox_try = 0; saw_resolve[w] = NONE; saw_try[w] = 0
  :: else
  fi;
  c = 0;
  do
  :: c < 2 ->
    if
#ifdef NO_BARRIER
    :: answered(w, c) && !declares[c] -> MY(w, c) = NONE; MY_TRY(w, c) = 0
#else
    :: answered(w, c) -> MY(w, c) = NONE; MY_TRY(w, c) = 0
#endif
    :: else
    fi;
    if
#ifdef NO_BARRIER
    :: declares[c] && MY(w, c) == NONE -> MY(w, c) = TO_SEND; MY_TRY(w, c) = mine[w].tries[c]
#else
    :: declares[c] -> MY(w, c) = TO_SEND; MY_TRY(w, c) = mine[w].tries[c]
#endif
    :: else
    fi;
    c++
  :: else -> break
  od;
  if
  :: log.status == COMPLETED -> PROMISE(10, done_for_real, arrived[A] > 0 && arrived[B] > 0)
  :: else
  fi;
  if
  :: release ->
    claim = 0;
    live = false;
    PROMISE(7, none_left, !inbox_signal && inbox_resolve == NONE);
    forget(w)
  :: else -> at[w] = HOLDING
  fi
}

inline fresh_draft() {
  release = false;
  reads_inbox = false;
  closes[A] = false;
  closes[B] = false;
  declares[A] = false;
  declares[B] = false
}

// [pump] All input and all decisions that follow from it, in one commit.
inline pump(w) {
  fresh_draft();
  add_outcomes(w);
  add_requests(w);
  decide(w);
  find_refusal(w);
  if
  :: refused
  :: else -> write(w)
  fi
}

// [drain] Releases the job; a call that was sent is not awaited.
inline drain(w) {
  fresh_draft();
  add_outcomes(w);
  add_requests(w);
  mine[w].status = QUEUED;
  release = true;
  find_refusal(w);
  if
  :: refused
  :: else -> write(w)
  fi
}

// Tool::perform: the request leaves.
inline send(w, call) {
  PROMISE(3, recorded_once, !recorded[call]);
  PROMISE(4, declared_first, log.tries[call] >= MY_TRY(w, call));
  MY(w, call) = SENT
}

inline arrive(call) {
  if
  :: call == A -> arrived[A]++; PROMISE(1, at_most_once, arrived[A] <= 1)
  :: else -> arrived[B] = 1 // any number of times, under one key: the downstream applies it once
  fi
}

// The key of a request; checked when it is sent, since every sent request may arrive.
inline carry_key(w, call) {
  if
  :: arrived_key[call] == 0 -> arrived_key[call] = mine[w].key[call]
  :: else -> PROMISE(5, one_key, arrived_key[call] == mine[w].key[call])
  fi
}

#define EACH_CALL(w, call) \
  /* [perform] the permit, then the request */ \
  :: atomic { at[w] == HOLDING && MY(w, call) == TO_SEND -> d_step { carry_key(w, call); send(w, call) } } \
  /* [withdraw] not_sent: a definite failure */ \
  :: atomic { at[w] == HOLDING && MY(w, call) == TOO_LATE -> MY(w, call) = FAILURE } \
  /* [put_effect] split: the effect record, fenced, in its own transaction */ \
  :: atomic { at[w] == HOLDING && to_record(w, call) -> \
       d_step { if \
                :: claim != me[w] -> lose(w) \
                :: else -> effect[call] = MY(w, call); \
                           if :: MY(w, call) == SUCCESS -> recorded[call] = true :: else fi \
                fi } } \
  /* [put_late] an outcome that a worker without the lease observed. A decided try has no effect record: such a \
     record is kept for operators only */ \
  :: atomic { at[w] == LOST && (MY(w, call) == SUCCESS || MY(w, call) == FAILURE) -> \
       d_step { if \
                :: log.tries[call] == MY_TRY(w, call) && log.by[call] == me[w] && log.open[call] && \
                   (log.phase[call] == CALLING || log.phase[call] == DOUBT) && effect[call] == NONE -> \
                     effect[call] = MY(w, call); \
                     if :: MY(w, call) == SUCCESS -> recorded[call] = true :: else fi \
                :: else \
                fi; \
                MY(w, call) = NONE; MY_TRY(w, call) = 0 } }

proctype Worker(byte w) {
end:
  do
  // [claim] Idle workers are interchangeable: the first one claims.
  :: atomic { at[w] == IDLE && may_run && (claim == 0 || !live) && (w == 0 || at[0] != IDLE) ->
       d_step { me[w] = w + 1; claim = me[w]; live = true; at[w] = CLAIMED } }
  :: atomic { at[w] == CLAIMED -> d_step { read_log(w) } }
  // [notified] The inbox has an entry. The hint may be lost, or late.
  :: atomic { at[w] == HOLDING && begun[w] && !answered(w, A) && !answered(w, B) &&
              (inbox_signal && !saw_signal[w] || inbox_resolve != NONE && saw_resolve[w] == NONE) ->
       d_step { if
                :: current[w] ->
                     saw_signal[w] = inbox_signal; saw_resolve[w] = inbox_resolve; saw_try[w] = inbox_try
                :: else -> at[w] = CLAIMED
                fi } }
#ifdef CHECK_THEN_WRITE
  :: atomic { at[w] == HOLDING && has_work(w) && !to_record(w, A) && !to_record(w, B) ->
       d_step { if
                :: claim == me[w] && current[w] -> at[w] = CHECKED
                :: claim == me[w] && !current[w] -> at[w] = CLAIMED
                :: else -> lose(w)
                fi } }
  :: atomic { at[w] == CHECKED -> d_step { pump(w) } }
#else
  :: atomic { at[w] == HOLDING && has_work(w) && !to_record(w, A) && !to_record(w, B) -> d_step { pump(w) } }
#endif
#ifdef NO_BARRIER
  // The call leaves before its declaration is durable.
  :: atomic { at[w] == HOLDING && claim == me[w] && live && mine[w].phase[A] == READY && MY(w, A) == NONE ->
       d_step { MY_TRY(w, A) = 1; send(w, A) } }
#endif
  // [again] The commit is durable, its response was lost: the same bytes again, the store responds `repeated`.
  :: atomic { at[w] == HOLDING && faults > 0 && (MY(w, A) == TO_SEND || MY(w, B) == TO_SEND) ->
       d_step { faults--; at[w] = UNSURE } }
  :: atomic { at[w] == UNSURE -> at[w] = HOLDING }
  EACH_CALL(w, A)
  EACH_CALL(w, B)
  // [lose] The heartbeat is refused. (A commit can be refused too: [refuse].)
  :: atomic { (at[w] == HOLDING || at[w] == CLAIMED || at[w] == UNSURE) && (claim != me[w] || !live) ->
       d_step { lose(w) } }
  // [forget] What it did not record is dropped.
  :: atomic { at[w] == LOST -> d_step { forget(w) } }
  // [give_back] This process cannot run the job.
  :: atomic { at[w] == HOLDING && !begun[w] && faults > 0 ->
       d_step { faults--;
                if
                :: claim == me[w] && !inbox_signal && inbox_resolve == NONE -> claim = 0; live = false
                :: else
                fi;
                forget(w) } }
  :: atomic { at[w] == HOLDING && begun[w] && faults > 0 && MY(w, A) != TO_SEND && MY(w, B) != TO_SEND &&
              MY(w, A) != TOO_LATE && MY(w, B) != TOO_LATE && !to_record(w, A) && !to_record(w, B) ->
       d_step { faults--; drain(w) } }
  // [die] The process dies.
  :: atomic { at[w] != IDLE && faults > 0 -> d_step { faults--; forget(w) } }
  od
}

// ---------------------------------------------------------------- time, network, operators

#define holder_lives (me[claim - 1] == claim)

// send_by is never later than the lease's end: what was declared under it and not sent is withdrawn.
inline send_by_passes(w, call) {
#ifndef NO_SEND_BY
  if
  :: MY(w, call) == TO_SEND -> MY(w, call) = TOO_LATE
  :: else
  fi
#else
  skip
#endif
}

proctype Clock() {
end:
  do
  // [lease_ends] Of a dead worker always, of a running one when it stalls for too long.
  :: atomic { claim != 0 && live && (!holder_lives || faults > 0) ->
       d_step { if
                :: holder_lives -> faults--; send_by_passes(claim - 1, A); send_by_passes(claim - 1, B)
                :: else
                fi;
                live = false } }
  // [stall] For longer than the send window, but shorter than a lease.
  :: atomic { faults > 0 && MY(0, A) == TO_SEND -> d_step { faults--; send_by_passes(0, A) } }
  :: atomic { faults > 0 && MY(1, A) == TO_SEND -> d_step { faults--; send_by_passes(1, A) } }
#ifdef EXPIRES
  // [come_due]
  :: atomic { !due && log.wait == OPEN -> due = true }
  // [fire_due] The timer of a job without a lease.
  :: atomic { due && claim == 0 && log.wait == OPEN ->
       d_step {
                PROMISE(8, signal_first, !inbox_signal);
                log.wait = TIMED_OUT;
                grown();
                if :: log.status == WAITING -> log.status = QUEUED :: else fi } }
#endif
  od
}

#define NETWORK(w, call) \
  /* [answer] it arrives, and its worker receives the response */ \
  :: atomic { MY(w, call) == SENT -> d_step { MY(w, call) = SUCCESS; arrive(call) } } \
  /* [deny] a definite failure: it did not happen */ \
  :: atomic { MY(w, call) == SENT && faults > 0 -> d_step { faults--; MY(w, call) = FAILURE } } \
  /* [no_response] timeout, reset: it may still arrive, or has arrived */ \
  :: atomic { MY(w, call) == SENT && faults > 0 -> d_step { faults--; MY(w, call) = UNKNOWN; on_the_way[call]++ } }

#define STRAY(call) \
  /* [stray] no process waits for it: it arrives, or is lost */ \
  :: atomic { on_the_way[call] > 0 -> d_step { on_the_way[call]--; arrive(call) } } \
  :: atomic { on_the_way[call] > 0 -> on_the_way[call]-- }

// Delivers, refuses, or loses a response; a request without a listener arrives or is lost.
proctype Network() {
end:
  do
  NETWORK(0, A)
  NETWORK(0, B)
  NETWORK(1, A)
  NETWORK(1, B)
  STRAY(A)
  STRAY(B)
  od
}

// How a request is to be written, by what its writer has read (RequestSubmitter::apply_or_enqueue).
#define NOWHERE 0
#define TO_INBOX 1
#define TO_LOG 2

proctype Sender() {
  byte where, sends = SENDS;
end:
  do
  // [read_for_signal]
  :: atomic { where == NOWHERE && sends > 0 && log.wait == OPEN ->
       d_step { if :: claim != 0 -> where = TO_INBOX :: else -> where = TO_LOG; sender_current = true fi } }
  // [put_signal]
  :: atomic { where == TO_INBOX ->
       d_step { if
                :: claim != 0 -> inbox_signal = true; accepted = true; sends--
                :: else
                fi;
                where = NOWHERE; sender_current = false } }
  // [write_signal]
  :: atomic { where == TO_LOG ->
       d_step { if
                :: claim == 0 && sender_current ->
                     log.wait = SIGNALLED;
                     grown();
                     consumed++;
                     PROMISE(6, signal_once, consumed <= 1);
                     if :: log.status == WAITING -> log.status = QUEUED :: else fi;
                     accepted = true;
                     sends--
                :: else
                fi;
                where = NOWHERE; sender_current = false } }
  od
}

// Checks the downstream, then resolves: `happened` if the request arrived, `not_happened` if it did not.
#ifndef NO_OPERATOR
proctype Operator(byte p) {
  byte where, decision, which;
end:
  do
  // [inspect]
  :: atomic { where == NOWHERE && log.phase[A] == DOUBT && inbox_resolve == NONE && (arrived[A] > 0 || is_settled) ->
       d_step { which = log.tries[A];
                if :: arrived[A] > 0 -> decision = HAPPENED :: else -> decision = NOT_HAPPENED fi;
                if :: claim != 0 -> where = TO_INBOX :: else -> where = TO_LOG; operator_current[p] = true fi } }
  // [put_resolution]
  :: atomic { where == TO_INBOX && inbox_resolve == NONE ->
       d_step { if
                :: claim != 0 -> inbox_resolve = decision; inbox_try = which
                :: else
                fi;
                where = NOWHERE; operator_current[p] = false; decision = NONE; which = 0 } }
  // [write_resolution]
  :: atomic { where == TO_LOG ->
       d_step { if
                :: claim == 0 && operator_current[p] ->
                     if
                     :: effect[A] != NONE -> // the result came before the resolution
                          log.open[A] = false;
                          if
                          :: effect[A] == SUCCESS -> log.phase[A] = COMMITTED
                          :: else -> log.phase[A] = FAILED_TRY
                          fi;
                          effect[A] = NONE
                     :: else ->
                          apply_resolve(log, decision, which);
                          if :: log.phase[A] == COMMITTED -> recorded[A] = true :: else fi
                     fi;
                     if
                     :: log.phase[A] != DOUBT ->
                          grown();
                          if :: log.status == WAITING || log.status == PARKED -> log.status = QUEUED :: else fi
                     :: else
                     fi
                :: else
                fi;
                where = NOWHERE; operator_current[p] = false; decision = NONE; which = 0 } }
  od
}
#endif

init {
  atomic {
#ifdef ONLY_A
    log.phase[B] = COMMITTED;
    arrived[B] = 1;
#endif
#ifdef NO_WAIT
    log.wait = SIGNALLED;
#endif
#ifdef ONLY_B
    log.phase[A] = COMMITTED;
    arrived[A] = 1;
#endif
    run Worker(0);
    run Worker(1);
    run Clock();
    run Network();
    run Sender();
#ifndef NO_OPERATOR
    run Operator(0);
#ifdef TWO_OPERATORS
    run Operator(1)
#endif
#endif
  }
}

// ---------------------------------------------------------------- liveness, under weak fairness

// After finitely many faults the job ends, if an operator resolves calls.
ltl ends { <> (log.status == COMPLETED) }
// Without an operator it ends, or stays parked.
ltl ends_or_parks { <> [] (log.status == COMPLETED || log.status == PARKED) }
// What was acknowledged is consumed.
ltl delivered { [] (accepted -> <> (consumed > 0)) }
