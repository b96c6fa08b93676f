// The frontier rule of code agents: how a routine is replayed from its record. Checked by `./dev model`.
//
// One job, one routine at a time. The routine runs three parallel branches that share the variable x. Every delivery
// outside of the closed scope changes x, and every request contains x, so what a branch requests depends on the order
// of deliveries:
//
//   branch A   A1, then a value (now, uuid), then A2 with that value
//   branch B   a closed scope { S1, then S2 }, then B1
//   branch C   C1
//
// A request is a worker's function or remote. The success of a function is delivered before it is durable, with
// `delivered` in its record; all else is delivered after its commit, in log order. A routine can be lost before and
// after every commit; the next one replays the record. Each `atomic` is one commit or one move of the routine.
// formal/README.md states the rule, what each move models, what is left out and why.
//
//   -D CRASHES=n    routines that are lost, altogether
//   -D WAITS=n      requests that wait to be admitted, altogether
//   -D FUNCTIONS=m  the bits of m: which requests are functions
//   -D EITHER=m     the bits of m: which requests may be functions or remote
//   -D LATE         a function outlives its routine; its success is recorded late, without `delivered`
//   -D RACE         the routine returns when A or C has finished; without it when all three have
//   -D SLOW         a routine may make a recorded request later than it appears to have settled
//   -D ONLY=n       check this promise only (below); all of them without it
//   -D <VARIANT>    the rule with one part removed (formal/README.md has the list)

#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef WAITS
#define WAITS 0
#endif
#ifndef FUNCTIONS
#define FUNCTIONS 21 // A1, B1, S1
#endif
#ifndef EITHER
#define EITHER 0
#endif
#ifndef ONLY
#define ONLY 0
#endif

// ---------------------------------------------------------------- promises

bool no_divergence = true;  // 1 a routine makes the recorded requests again, with the same content
bool frontier_first = true; // 2 nothing is admitted or performed before the frontier
bool recorded_order = true; // 3 every recorded outcome is delivered once, in the order that earlier routines saw
bool well_formed = true;    // 4 a position in the record is free and not above the number of outcomes before it
bool never_stuck = true;    // 5 some move is possible until the job has ended

// A promise that is not checked may break.
#define PROMISE(number, promise, condition) \
  if \
  :: (condition) || (ONLY != 0 && ONLY != number) \
  :: else -> promise = false; assert(promise) \
  fi

// ---------------------------------------------------------------- the record

#define N 6
#define A1 0
#define A2 1
#define B1 2
#define C1 3
#define S1 4
#define S2 5
#define SCOPE 4 // as a cause of a change of x; inner outcomes cause none

// States of a request, and of the scope's end and the value (never WAITING).
#define NONE 0
#define DRAFT 1   // in the advance that is not committed, or held until the frontier
#define WAITING 2 // waits to be admitted
#define RECORDED 3

#define FREE 15 // the position of an outcome without `delivered`: it fills a free position, in log order

bool function[N]; // performed by the worker; else remote
byte request[N];
byte requested_at[N]; // its `delivered`
short content[N];
byte log[N]; // the outcomes, in log order
byte log_size;
bool has_outcome[N];
byte delivered_at[N]; // `delivered` of its outcome, or FREE
byte scope;           // the end of the closed scope
byte scope_begin;     // `delivered` when it began
byte scope_end;       // `delivered` when it ended
byte value;
bit drawn; // the value
bool ended; // the job

// ---------------------------------------------------------------- the routine

// Where a branch is. Even: it has code to run. Odd: it waits, or has finished.
#define A 0 // 0 request A1, 1 wait, 2 draw the value and request A2, 3 wait, 4 finish, 5 finished
#define B 1 // 0 begin the scope and request S1, 1 wait, 2 request S2, 3 wait, 4 end the scope, 5 wait for its recorded
            // result, 6 request B1, 7 wait, 8 finish, 9 finished
#define C 2 // 0 request C1, 1 wait, 2 finish, 3 finished. AWAITS_OUTSIDE: 2 request S2, 3 wait, 4 finish, 5 finished
byte pc[3];
short x;
byte delivered;   // how many outcomes were delivered to it
bool got[N];      // which; also those that were passed over in an ended scope
bool live;        // it has reached the frontier
byte record_size; // outcomes in the log when the routine began
byte record_left; // those of them that are not delivered
bool returned;
byte mine[N];     // successes of functions that were delivered and are not durable, in the order of delivery
byte mine_at[N];  // their positions
byte mine_size;
byte uncounted;   // INNER_NOT_COUNTED only

// ---------------------------------------------------------------- for the promises and bounds

byte order[N];     // what was delivered at each position
byte durable;      // how many positions of `order` every later routine must repeat
bool lost_with[N]; // a function that was permitted to a lost routine
byte crashes = CRASHES;
byte waits = WAITS;

// Of one d_step; meaningless after it.
hidden byte r, k, next, impossible;
byte i; // of the loop in [commit]; else 0

// ---------------------------------------------------------------- the variants

// AWAITS_OUTSIDE: the scope is { S1, then what C1 gives }, and S2 is the second request of C. The code of B runs first.
#ifdef AWAITS_OUTSIDE
#define inner(q) (q == S1)
#define made_S2 (pc[C] >= 3)
#define end_of_C 4
#define B_first (pc[B] != 2 && pc[B] != 4)
#else
#define inner(q) (q == S1 || q == S2)
#define made_S2 (pc[B] >= 3 && pc[B] != 5)
#define end_of_C 2
#define B_first true
#endif
#ifdef NO_SETTLING
#define settled true
#else
#define settled is_settled
#endif
#ifdef LOG_ORDER_ONLY
#define next_recorded first_new
#else
#define next_recorded \
  (fixed(0) -> 0 : (fixed(1) -> 1 : (fixed(2) -> 2 : (fixed(3) -> 3 : (fixed(4) -> 4 : (fixed(5) -> 5 : \
  first_filler))))))
#endif
#ifdef EARLY_POSITION
#define may_deliver(p) (result_given(p) && (made(next_recorded) || inner(next_recorded) && scope == RECORDED))
#else
#ifdef RESULT_ANY_TIME
#define may_deliver(p) all_matched(p)
#else
#define may_deliver(p) (all_matched(p) && result_given(p))
#endif
#endif
#ifdef FRONTIER_WITHOUT_SCOPES
#define frontier_reached (record_left == 0 && all_matched(FREE))
#else
#define frontier_reached at_frontier
#endif
#ifdef INNER_NOT_COUNTED
#define pass_over delivered--; uncounted++
#else
#define pass_over skip
#endif
#ifdef ENDED_AT_RETURN
#define check_return PROMISE(1, no_divergence, live || at_frontier)
#else
#define check_return skip
#endif
#ifdef ADMITTED_EARLY
#define may_commit true
#else
#define may_commit live
#endif
#ifdef LATE_POSITION
#define set_late_position(q) requested_at[q] = log_size
#else
#define set_late_position(q) skip
#endif
#ifdef VALUE_APART
#define value_with_requests !any_draft
#else
#define value_with_requests true
#endif
#ifdef KEPT_AFTER_LATE
#define late_refuses false
#else
#define late_refuses true
#endif
#ifdef DELIVERED_DURING_REPLAY
#define on_arrival(q) if :: !live && settled && made(q) -> deliver(q) :: else fi
#else
#define on_arrival(q) skip
#endif
#ifdef LATE
#define late_allowed true
#else
#define late_allowed false
#endif
#ifdef RACE
#define finished (pc[A] == 5 || pc[C] == end_of_C + 1)
#else
#define finished (pc[A] == 5 && pc[B] == 9 && pc[C] == end_of_C + 1)
#endif

// ---------------------------------------------------------------- what a replay may do

#define made(q) \
  (q == A1 && pc[A] >= 1 || q == A2 && pc[A] >= 3 || q == B1 && pc[B] >= 7 || q == C1 && pc[C] >= 1 || \
   q == S1 && pc[B] >= 1 && pc[B] != 5 || q == S2 && made_S2)

// R1: every recorded request with `delivered <= p` is matched. An ended scope is one request, made when it began.
#define matched(q, p) (request[q] != RECORDED || requested_at[q] > p || made(q) || inner(q) && scope == RECORDED)
#define all_matched(p) \
  (matched(A1, p) && matched(A2, p) && matched(B1, p) && matched(C1, p) && matched(S1, p) && matched(S2, p) && \
   (scope != RECORDED || scope_begin > p || pc[B] != 0))
// R1: the ended scope has given its result, if it ended before position p.
#define result_given(p) (scope != RECORDED || scope_end > p || pc[B] >= 6)
// R2.
#define at_frontier (record_left == 0 && all_matched(FREE) && result_given(FREE))

// The routine has no code to run. SLOW: code that makes a recorded request is not noticed.
#ifdef SLOW
#define unnoticed(b) \
  (!live && (b == A && (pc[A] == 0 && request[A1] == RECORDED || pc[A] == 2 && request[A2] == RECORDED) || \
             b == B && (pc[B] == 0 && (request[S1] == RECORDED || scope == RECORDED) || \
                        pc[B] == 2 && request[S2] == RECORDED || pc[B] == 6 && request[B1] == RECORDED) || \
             b == C && pc[C] == 0 && request[C1] == RECORDED))
#else
#define unnoticed(b) false
#endif
#define quiet(b) (pc[b] % 2 == 1 || unnoticed(b))
#define is_settled (returned || quiet(A) && quiet(B) && quiet(C))

// The order of delivery: `delivered` where it is recorded; the others fill the free positions in log order.
#define fixed(q) (has_outcome[q] && !got[q] && delivered_at[q] == delivered + uncounted)
#define fills(i) (i < record_size && !got[log[i]] && delivered_at[log[i]] == FREE)
#define first_filler \
  (fills(0) -> log[0] : (fills(1) -> log[1] : (fills(2) -> log[2] : (fills(3) -> log[3] : \
  (fills(4) -> log[4] : log[5])))))
#define is_new(i) (i < log_size && !got[log[i]])
#define first_new \
  (is_new(0) -> log[0] : (is_new(1) -> log[1] : (is_new(2) -> log[2] : (is_new(3) -> log[3] : \
  (is_new(4) -> log[4] : (is_new(5) -> log[5] : N))))))

// ---------------------------------------------------------------- moves of the routine

#define changed(cause) (x * 6 + cause + 1)

// [make_request] It is matched with its record, or joins the advance. Before the frontier the advance is held.
inline make_request(q, what) {
  if
  :: request[q] == RECORDED -> PROMISE(1, no_divergence, content[q] == what)
  :: else ->
    request[q] = DRAFT;
    requested_at[q] = delivered;
    content[q] = what
  fi
}

// An outcome is delivered at the next position, or passed over. After the return it has no effect.
inline deliver(q) {
  PROMISE(3, recorded_order, !got[q]);
  PROMISE(3, recorded_order, delivered + uncounted >= durable || order[delivered + uncounted] == q);
  order[delivered + uncounted] = q;
  got[q] = true;
  delivered++;
  if
  :: inner(q) && pc[B] == 5 -> pass_over
  :: !(inner(q) && pc[B] == 5) && !returned ->
    if
    :: inner(q)
    :: else -> x = changed(q)
    fi;
    if
    :: q == A1 || q == A2 -> pc[A]++
    :: q == B1 || inner(q) -> pc[B]++
    :: q == C1 || q == S2 && !inner(q) -> pc[C]++
    fi;
#ifdef AWAITS_OUTSIDE
    if
    :: q == C1 && pc[B] == 3 -> pc[B] = 4
    :: else
    fi
#endif
  :: !(inner(q) && pc[B] == 5) && returned
  fi
}

// [return] The last branch has finished; in a race the first.
inline finish(b) {
  pc[b]++;
  if
  :: finished -> returned = true; check_return
  :: else
  fi
}

// The routine is lost, and with it what is not committed and what waits to be admitted.
inline drop_routine() {
  durable = (mine_size > 0 -> mine_at[0] : delivered);
  r = 0;
  do
  :: r < N ->
    if
    :: request[r] == RECORDED -> lost_with[r] = function[r] && !has_outcome[r]
    :: else -> request[r] = NONE; requested_at[r] = 0; content[r] = 0
    fi;
    if
    :: r >= durable -> order[r] = 0
    :: else
    fi;
    got[r] = false;
    mine[r] = 0;
    mine_at[r] = 0;
    r++
  :: else -> break
  od;
  if
  :: scope != RECORDED -> scope = NONE; scope_begin = 0; scope_end = 0
  :: else
  fi;
  if
  :: value != RECORDED -> value = NONE; drawn = 0
  :: else
  fi;
  mine_size = 0;
  pc[A] = 0;
  pc[B] = 0;
  pc[C] = 0;
  x = 0;
  delivered = 0;
  uncounted = 0;
  live = false;
  returned = false;
  record_size = log_size;
  record_left = log_size
}

// ---------------------------------------------------------------- the log

inline add_outcome(q, position) {
  log[log_size] = q;
  log_size++;
  has_outcome[q] = true;
  delivered_at[q] = position
}

inline check_position(position) {
  impossible = position > log_size;
  k = 0;
  do
  :: k < log_size -> impossible = impossible || delivered_at[log[k]] == position; k++
  :: else -> break
  od;
  PROMISE(4, well_formed, !impossible)
}

inline record_request(q) {
  PROMISE(2, frontier_first, at_frontier);
  PROMISE(4, well_formed, requested_at[q] <= log_size);
  request[q] = RECORDED
}

#define any_draft \
  (request[0] == DRAFT || request[1] == DRAFT || request[2] == DRAFT || request[3] == DRAFT || request[4] == DRAFT || \
   request[5] == DRAFT)

// Everything of an advance but its requests.
inline record_advance() {
  r = 0;
  do
  :: r < mine_size ->
    if
    :: !has_outcome[mine[r]] -> check_position(mine_at[r]); add_outcome(mine[r], mine_at[r])
    :: else
    fi;
    mine[r] = 0;
    mine_at[r] = 0;
    r++
  :: else -> break
  od;
  mine_size = 0;
  if
  :: scope == DRAFT -> PROMISE(4, well_formed, scope_end <= log_size); scope = RECORDED
  :: else
  fi;
  if
  :: value == DRAFT && value_with_requests -> value = RECORDED
  :: else
  fi
}

#define recorded_late(n) (n < mine_size && has_outcome[mine[n]])
#define late_conflict \
  (recorded_late(0) || recorded_late(1) || recorded_late(2) || recorded_late(3) || recorded_late(4) || recorded_late(5))
#define something_to_commit (mine_size > 0 || any_draft || scope == DRAFT || value == DRAFT)
#define in_flight(q) (request[q] == RECORDED && !has_outcome[q])
#define none_in_flight \
  (!in_flight(0) && !in_flight(1) && !in_flight(2) && !in_flight(3) && !in_flight(4) && !in_flight(5))

// ---------------------------------------------------------------- the job

#define EACH_REQUEST(q) \
  /* [end_function] A worker's function ends with success, which is delivered at once. */ \
  :: atomic { !ended && live && settled && function[q] && request[q] == RECORDED && made(q) && !got[q] -> \
       d_step { PROMISE(2, frontier_first, record_left == 0); \
                mine[mine_size] = q; mine_at[mine_size] = delivered; mine_size++; \
                deliver(q) } } \
  /* [admit] A request that waited is recorded late, with its own `delivered`. */ \
  :: atomic { !ended && live && request[q] == WAITING -> d_step { set_late_position(q); record_request(q) } } \
  /* [end_remote] A remote request ends, whatever the routine does. */ \
  :: atomic { !ended && !function[q] && request[q] == RECORDED && !has_outcome[q] -> \
       d_step { add_outcome(q, FREE); on_arrival(q) } } \
  /* [end_late] A function that outlived its routine ends. */ \
  :: atomic { !ended && late_allowed && lost_with[q] && !has_outcome[q] -> d_step { add_outcome(q, FREE) } }

proctype Job() {
  do
  // [run] The code of a branch, up to the next request that it waits for.
  :: atomic { !returned && pc[A] == 0 -> d_step { make_request(A1, x); pc[A] = 1 } }
  // [draw] A value is drawn once and then matched by its number.
  :: atomic { !returned && pc[A] == 2 ->
       if
       :: value == NONE -> value = DRAFT; if :: drawn = 0 :: drawn = 1 fi
       :: else
       fi;
       d_step { make_request(A2, x * 2 + drawn); pc[A] = 3 } }
  :: atomic { !returned && pc[A] == 4 -> d_step { finish(A) } }
  // [begin_scope]
  :: atomic { !returned && pc[B] == 0 ->
       d_step { if
                :: scope == RECORDED -> pc[B] = 5
                :: else -> scope_begin = delivered; make_request(S1, x); pc[B] = 1
                fi } }
#ifdef AWAITS_OUTSIDE
  :: atomic { !returned && pc[B] == 2 -> pc[B] = (got[C1] -> 4 : 3) }
#else
  :: atomic { !returned && pc[B] == 2 -> d_step { make_request(S2, x); pc[B] = 3 } }
#endif
  // [end_scope] Its end, with the result, is in the next commit.
  :: atomic { !returned && pc[B] == 4 ->
       d_step { scope = DRAFT; scope_end = delivered; x = changed(SCOPE); pc[B] = 6 } }
  :: atomic { !returned && pc[B] == 6 -> d_step { make_request(B1, x); pc[B] = 7 } }
  :: atomic { !returned && pc[B] == 8 -> d_step { finish(B) } }
  :: atomic { !returned && pc[C] == 0 -> d_step { make_request(C1, x); pc[C] = 1 } }
#ifdef AWAITS_OUTSIDE
  :: atomic { !returned && pc[C] == 2 && B_first -> d_step { make_request(S2, x); pc[C] = 3 } }
#endif
  :: atomic { !returned && pc[C] == end_of_C -> d_step { finish(C) } }

  // [replay] The next position of the record is delivered.
  :: atomic { !ended && !live && settled && record_left > 0 && may_deliver(delivered) ->
       d_step { next = next_recorded; record_left--; deliver(next) } }
  // [give_result] An ended scope gives its result. Later requests show whether x is what it was at the end.
  :: atomic { !ended && !returned && settled && pc[B] == 5 && delivered >= scope_end ->
       d_step { x = changed(SCOPE); pc[B] = 6 } }
  // [reach_frontier] The held advance may go out.
  :: atomic { !ended && !live && frontier_reached -> live = true }
  // [deliver] What is durable is delivered in log order; first what came in during the replay.
  :: atomic { !ended && live && settled && first_new != N -> d_step { next = first_new; deliver(next) } }

  // [commit] The advance: ends of functions, requests, value and end of the scope; all of it or nothing. A request is
  // recorded, or it waits to be admitted.
  :: atomic { !ended && may_commit && is_settled && something_to_commit && !(late_refuses && late_conflict) ->
       d_step { record_advance() };
       do
       :: i < N && request[i] == DRAFT && waits > 0 -> request[i] = WAITING; waits--; i++
       :: i < N && request[i] == DRAFT -> d_step { record_request(i); i++ }
       :: i < N && request[i] != DRAFT -> i++
       :: i == N -> i = 0; break
       od }
  // [refuse] A success in the advance was recorded late meanwhile: the routine is dropped.
  :: atomic { !ended && may_commit && is_settled && late_refuses && late_conflict -> d_step { drop_routine() } }

  EACH_REQUEST(0)
  EACH_REQUEST(1)
  EACH_REQUEST(2)
  EACH_REQUEST(3)
  EACH_REQUEST(4)
  EACH_REQUEST(5)

  // [crash] The routine is lost; the next one gets the record.
  :: atomic { !ended && crashes > 0 -> d_step { crashes--; drop_routine() } }
  // [end] The routine has returned, and what was in flight has ended.
  :: atomic { !ended && live && returned && !something_to_commit && none_in_flight ->
       d_step {
#ifndef RACE
                PROMISE(3, recorded_order, got[0] && got[1] && got[2] && got[3] && got[4] && got[5]);
#endif
                ended = true } }
  :: else -> d_step { PROMISE(5, never_stuck, ended) }; break
  od
}

init {
  atomic {
    do
    :: i < N && (((FUNCTIONS | EITHER) >> i) & 1) -> function[i] = true; i++
    :: i < N && (((~FUNCTIONS | EITHER) >> i) & 1) -> i++
    :: i == N -> i = 0; break
    od;
    run Job()
  }
}

// After finitely many crashes the job ends.
ltl ends { <> ended }
