#include "runtime/redact.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/json.h"
#include "core/redacted.h"
#include "core/seal.h"
#include "engine/left.h"
#include "runtime/kept.h"

namespace ae::runtime {
namespace {

constexpr int kTries = 8;

std::string named(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// What of one event is still there.
std::vector<std::string> there_of(const Event& event) {
  std::vector<std::string> there;
  if (!event.salts.is_object()) return there;
  for (const auto& [name, salt] : event.salts.members()) there.push_back(name);
  return there;
}

Status has_ended(const JobId& job, const engine::State& state, const store::Loaded& loaded) {
  if (engine::is_terminal(state.status) && !loaded.row.claim) return {};
  return fail(Code::not_settled, "job " + job.text + " has not ended (" +
                                     std::string(engine::to_text(state.status)) +
                                     "): it goes on with its values; let it end, or cancel it, "
                                     "then redact");
}

// A log, read; and then once more without what is to go.
class Redacting {
 public:
  Redacting(const RedactRequest& request, const store::Loaded& loaded)
      : request_(request), loaded_(loaded) {}

  Result<store::Redaction> make(Redacted& said) {
    AE_TRY(read());
    AE_TRY(has_ended(request_.job, state_, loaded_));
    AE_TRY(choose(said));
    said.job = request_.job;
    said.kept = kept_of(request_.job, events_, loaded_, request_);
    store::Redaction redaction{.job = request_.job};
    if (said.dropped.empty()) return redaction;
    AE_TRY(rewrite(redaction));
    return redaction;
  }

 private:
  BlobSource blobs(std::vector<Hash>* noted = nullptr) const {
    return [this, noted](const Hash& hash) -> Result<std::string> {
      if (noted != nullptr && std::ranges::find(*noted, hash) == noted->end()) {
        noted->push_back(hash);
      }
      const auto found = std::ranges::find(loaded_.blobs, hash, &Blob::hash);
      if (found != loaded_.blobs.end()) return found->bytes;
      return fail(Code::log_corrupt, "a value that stands apart is missing: " + to_hex(hash));
    };
  }

  Status read() {
    AE_ASSIGN(const std::vector<Event> events, open_log(request_.job, loaded_));
    AE_ASSIGN(state_, engine::fold(request_.job, events, engine::compile_each_time()));
    events_ = events;
    return {};
  }

  Status choose(Redacted& said) {
    if (request_.all) {
      for (const Event& event : events_) {
        std::vector<std::string> fields = there_of(event);
        std::erase_if(fields, [&](const std::string& field) {
          return !engine::why_kept(event, field).empty() ||
                 (request_.keep_blind && event.seq == 1 && field == "blind");
        });
        take(event, fields, said);
      }
    }
    for (const ValueName& wish : request_.values) {
      if (wish.seq == 0 || wish.seq > events_.size()) {
        return fail(Code::input_invalid, "job " + request_.job.text + " has no event " +
                                             std::to_string(wish.seq) + ": its log has 1 to " +
                                             std::to_string(events_.size()));
      }
      const Event& event = events_[wish.seq - 1];
      const auto there = there_of(event);
      const auto gone = erased_values(event);
      if (wish.field.empty()) {
        if (there.empty() && gone.empty()) {
          return fail(Code::input_invalid, "event " + std::to_string(wish.seq) +
                                               " holds no value that could be dropped");
        }
        for (const std::string& field : there) AE_TRY(may_go(event, field));
        take(event, there, said);
        for (const std::string& field : gone) said.gone.push_back({wish.seq, field});
      } else if (std::ranges::find(there, wish.field) != there.end()) {
        AE_TRY(may_go(event, wish.field));
        take(event, {wish.field}, said);
      } else if (std::ranges::find(gone, wish.field) != gone.end()) {
        said.gone.push_back(wish);
      } else {
        return fail(Code::input_invalid, "event " + std::to_string(wish.seq) + " has no value \"" +
                                             wish.field + "\"" +
                                             (there.empty() ? "" : "; it has " + named(there)));
      }
    }
    // Without it no hash confirms a guess of what is erased.
    const Event& created = events_.front();
    blinded_ = created.payload.find("blind") != nullptr;
    if (!drop_.empty() && !request_.keep_blind && created.salts.find("blind") != nullptr) {
      drop_.insert({1, "blind"});
    }
    said.dropped.assign(drop_.begin(), drop_.end());
    return {};
  }

  static Status may_go(const Event& event, std::string_view field) {
    const std::string_view why = engine::why_kept(event, field);
    if (why.empty()) return {};
    return fail(Code::input_invalid, "event " + std::to_string(event.seq) + ", " +
                                         std::string(field) + " stays: " + std::string(why));
  }

  void take(const Event& event, const std::vector<std::string>& fields, Redacted&) {
    for (const std::string& field : fields) drop_.insert({event.seq, field});
    if (fields.empty()) return;
    // The record of the call's effect holds its result too.
    for (const char* name : {"invocation_id", "result_of"}) {
      const std::string invocation(event.payload.text(name));
      if (!invocation.empty()) invocations_.insert(invocation);
    }
  }

  // The log without them must still be one: what the job's course follows from stays.
  Status rewrite(store::Redaction& redaction) {
    Hash head;
    std::vector<Event> events;
    for (const std::string& bytes : loaded_.commits) {
      const DropValue drop = [&](const Event& event, std::string_view field) {
        return drop_.contains({event.seq, std::string(field)});
      };
      const LeftOver left_of = [&](const Event& event, std::string_view field) {
        return engine::left_of(event, field, blinded_);
      };
      AE_ASSIGN(std::string left, ae::redact(request_.job, bytes, head, blobs(), drop, left_of));
      std::vector<Hash> named_blobs;
      AE_ASSIGN(Opened opened, open(request_.job, left, head, blobs(&named_blobs)));
      head = opened.head;
      for (Event& event : opened.events) events.push_back(std::move(event));
      if (left == bytes) continue;
      redaction.commits.push_back({.first_seq = opened.first_seq,
                                   .replaces = sha256(bytes),
                                   .bytes = std::move(left),
                                   .blobs = std::move(named_blobs)});
    }
    if (auto folded = engine::fold(request_.job, events, engine::compile_each_time()); !folded) {
      return fail(Code::input_invalid,
                  "the job's course follows from one of these values, which therefore stays: " +
                      folded.error().message);
    }
    for (const std::string& invocation : invocations_) {
      redaction.effects.emplace_back(invocation);
    }
    return {};
  }

  const RedactRequest& request_;
  const store::Loaded& loaded_;
  std::vector<Event> events_;
  engine::State state_;
  std::set<ValueName> drop_;
  std::set<std::string> invocations_;
  bool blinded_ = false;
};

Value names_json(const std::vector<ValueName>& names) {
  std::vector<Value> list;
  list.reserve(names.size());
  for (const ValueName& name : names) {
    list.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return Value::array(std::move(list));
}

void try_redact(store::Store& store, std::shared_ptr<RedactRequest> request,
                async::Done<Result<Redacted>> done, int tries);

// Nobody knows whether it stands: the same again writes nothing when it does.
void write(store::Store& store, std::shared_ptr<RedactRequest> request,
           std::shared_ptr<const store::Redaction> redaction, Redacted said,
           async::Done<Result<Redacted>> done, int tries, bool may_stand = false) {
  store.redact(*redaction, [&store, request, redaction, said = std::move(said),
                            done = std::move(done), tries,
                            may_stand](Result<void> written) mutable {
    if (written) return done(std::move(said));
    const Code code = written.error().code;
    if (code == Code::unknown_outcome && tries < kTries) {
      return write(store, request, redaction, std::move(said), std::move(done), tries + 1, true);
    }
    // Of this try nothing stands; of the one before, nobody knows.
    if (code == Code::unavailable && may_stand) written.error().code = Code::unknown_outcome;
    // Somebody else was quicker: what stands there is read again.
    if (code == Code::sequence_conflict && tries < kTries) {
      return try_redact(store, request, std::move(done), tries + 1);
    }
    done(std::unexpected(written.error()));
  });
}

void try_redact(store::Store& store, std::shared_ptr<RedactRequest> request,
                async::Done<Result<Redacted>> done, int tries) {
  store.load(
      request->job, 1,
      [&store, request, done = std::move(done), tries](Result<store::Loaded> loaded) mutable {
        if (!loaded) return done(std::unexpected(loaded.error()));
        Redacted said;
        auto redaction = Redacting(*request, *loaded).make(said);
        if (!redaction) return done(std::unexpected(redaction.error()));
        if (said.dropped.empty()) return done(std::move(said));
        redaction->audit = {.at = store.now(),
                            .by = request->by,
                            .act = "redact",
                            .job = request->job,
                            .detail = Value::object({{"reason", request->reason},
                                                     {"values", names_json(said.dropped)}})};
        write(store, request, std::make_shared<store::Redaction>(*std::move(redaction)),
              std::move(said), std::move(done), tries);
      });
}

}  // namespace

std::vector<ValueName> redacted_values(const std::vector<Event>& events) {
  std::vector<ValueName> all;
  for (const Event& event : events) {
    for (std::string& field : erased_values(event)) all.push_back({event.seq, std::move(field)});
  }
  return all;
}

namespace {

// A redaction of a job and, with `tree`, of its forks. What has been forked is found in the audit log.
class Tree : public std::enable_shared_from_this<Tree> {
 public:
  Tree(store::Store& store, RedactRequest request, async::Done<Result<Redacted>> done)
      : store_(store), request_(std::move(request)), done_(std::move(done)) {}

  void run() { read_audit(0); }

 private:
  void read_audit(std::uint64_t after) {
    store_.audit_log(after, [self = shared_from_this()](Result<store::AuditLog> log) {
      if (!log) return self->done_(std::unexpected(log.error()));
      for (const store::AuditRow& row : log->rows) self->note(row);
      if (!log->rows.empty() && log->rows.back().seq < log->head.seq) {
        return self->read_audit(log->rows.back().seq);
      }
      self->forks_of(self->request_.job);
      if (self->request_.tree) return self->look_at_origin();
      self->look(0);
    });
  }

  // The forks are written first, so the origin must be known to be redactable before them.
  void look_at_origin() {
    store_.load(request_.job, 1, [self = shared_from_this()](Result<store::Loaded> loaded) {
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      const Status may = self->may_redact_origin(*loaded);
      if (!may) return self->done_(std::unexpected(may.error()));
      self->look(0);
    });
  }

  Status may_redact_origin(const store::Loaded& loaded) const {
    AE_ASSIGN(const std::vector<Event> events, open_log(request_.job, loaded));
    AE_ASSIGN(const engine::State state,
              engine::fold(request_.job, events, engine::compile_each_time()));
    return has_ended(request_.job, state, loaded);
  }

  void note(const store::AuditRow& row) {
    const auto entry = parse_json(row.body);
    if (!entry || entry->text("act") != "fork") return;
    const std::string fork((*entry)["detail"].text("fork"));
    if (!fork.empty()) made_[std::string(entry->text("job"))].push_back(JobId(fork));
  }

  // Each fork stands after what it was forked from.
  void forks_of(const JobId& job) {
    const auto made = made_.find(job.text);
    if (made == made_.end()) return;
    for (const JobId& fork : made->second) {
      if (std::ranges::find(forks_, fork) != forks_.end()) continue;
      forks_.push_back(fork);
      forks_of(fork);
    }
  }

  // Which forks are still there, and hold values? All of them must have ended before the first one is redacted.
  void look(std::size_t i) {
    if (i == forks_.size()) return decided();
    store_.load(forks_[i], 1, [self = shared_from_this(), i](Result<store::Loaded> loaded) {
      const JobId& fork = self->forks_[i];
      if (!loaded && loaded.error().code == Code::not_found) return self->look(i + 1);  // pruned
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      const auto events = open_log(fork, *loaded);
      if (!events) return self->done_(std::unexpected(events.error()));
      const bool holds = std::ranges::any_of(*events, [](const Event& event) {
        return std::ranges::any_of(there_of(event), [&](const std::string& field) {
          return field != "blind" && engine::why_kept(event, field).empty();
        });
      });
      if (holds && self->request_.tree) {
        const auto state = engine::fold(fork, *events, engine::compile_each_time());
        if (!state) return self->done_(std::unexpected(state.error()));
        if (!engine::is_terminal(state->status) || loaded->row.claim) {
          return self->done_(fail(
              Code::not_settled, "job " + fork.text + ", a fork of job " + self->request_.job.text +
                                     ", has not ended: it goes on with its values; nothing was "
                                     "redacted"));
        }
      }
      if (holds) self->holding_.push_back(fork);
      self->look(i + 1);
    });
  }

  void decided() {
    if (!holding_.empty() && !request_.tree && !request_.keep_forks) {
      std::vector<std::string> names;
      for (const JobId& fork : holding_) names.push_back(fork.text);
      return done_(fail(Code::input_invalid,
                        "forks of job " + request_.job.text +
                            " hold copies of its values: " + named(names) +
                            "; redact them too (--tree with --all), or leave them (--keep-forks)"));
    }
    if (!request_.tree)
      return redact_one(request_, [self = shared_from_this()](Result<Redacted> own) {
        if (own) {
          for (const JobId& fork : self->holding_) {
            own->kept.push_back({"copies of values", "job " + fork.text,
                                 "it is a fork, and was left (--keep-forks)"});
          }
        }
        self->done_(std::move(own));
      });
    next_fork();
  }

  // The newest first, the job itself last: what fails on the way is found again.
  void next_fork() {
    RedactRequest one = request_;
    const bool fork = !holding_.empty();
    if (fork) {
      one.job = holding_.back();
      holding_.pop_back();
    }
    redact_one(std::move(one), [self = shared_from_this(), fork](Result<Redacted> redacted) {
      if (!redacted) return self->done_(std::unexpected(redacted.error()));
      if (fork) {
        self->redacted_.push_back(std::move(*redacted));
        return self->next_fork();
      }
      redacted->forks = std::move(self->redacted_);
      self->done_(std::move(redacted));
    });
  }

  void redact_one(RedactRequest request, async::Done<Result<Redacted>> done) {
    try_redact(store_, std::make_shared<RedactRequest>(std::move(request)), std::move(done), 1);
  }

  store::Store& store_;
  const RedactRequest request_;
  async::Done<Result<Redacted>> done_;
  std::map<std::string, std::vector<JobId>> made_;  // forks, by what they were forked from
  std::vector<JobId> forks_, holding_;
  std::vector<Redacted> redacted_;
};

}  // namespace

void redact(store::Store& store, RedactRequest request, async::Done<Result<Redacted>> done) {
  std::make_shared<Tree>(store, std::move(request), std::move(done))->run();
}

}  // namespace ae::runtime
