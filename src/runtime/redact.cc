#include "runtime/redact.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "core/redacted.h"
#include "core/seal.h"

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

// A log, read; and then once more without what is to go.
class Redacting {
 public:
  Redacting(const RedactRequest& request, const store::Loaded& loaded)
      : request_(request), loaded_(loaded) {}

  Result<store::Redaction> make(Redacted& said) {
    AE_TRY(read());
    AE_TRY(has_ended());
    AE_TRY(choose(said));
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

  Status has_ended() const {
    if (engine::is_terminal(state_.status) && !loaded_.row.claim) return {};
    return fail(Code::not_settled, "job " + request_.job.text + " has not ended (" +
                                       std::string(engine::to_text(state_.status)) +
                                       "): it goes on with its values; let it end, or cancel it, "
                                       "then redact");
  }

  Status choose(Redacted& said) {
    if (request_.all) {
      for (const Event& event : events_) take(event, there_of(event), said);
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
        take(event, there, said);
        for (const std::string& field : gone) said.gone.push_back({wish.seq, field});
      } else if (std::ranges::find(there, wish.field) != there.end()) {
        take(event, {wish.field}, said);
      } else if (std::ranges::find(gone, wish.field) != gone.end()) {
        said.gone.push_back(wish);
      } else {
        return fail(Code::input_invalid, "event " + std::to_string(wish.seq) + " has no value \"" +
                                             wish.field + "\"" +
                                             (there.empty() ? "" : "; it has " + named(there)));
      }
    }
    said.dropped.assign(drop_.begin(), drop_.end());
    return {};
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
      AE_ASSIGN(std::string left, ae::redact(request_.job, bytes, head, blobs(), drop));
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

void redact(store::Store& store, RedactRequest request, async::Done<Result<Redacted>> done) {
  try_redact(store, std::make_shared<RedactRequest>(std::move(request)), std::move(done), 1);
}

}  // namespace ae::runtime
