// Pages of a conversation: the messages between a step and its model.
#include <utility>

#include "api/steps_read.h"
#include "inspect/conversation.h"

namespace ae::api {
namespace {

constexpr std::size_t kMessagesDefault = 100, kMessagesMax = 1'000;  // in one page

struct ConversationQuery {
  std::string step;
  std::uint64_t after = 0;
  std::size_t limit = kMessagesDefault;
  std::optional<std::uint64_t> sent_turn;  // the request of this turn instead
};

Result<ConversationQuery> conversation_query(const Query& query) {
  ConversationQuery wanted;
  AE_TRY(query.check_names({"step", "after", "limit", "as", "turn"}));
  if (const auto* step = query.find("step")) wanted.step = *step;
  AE_ASSIGN(const auto after, query.number("after"));
  wanted.after = after.value_or(0);
  AE_ASSIGN(wanted.limit, query.limit(kMessagesDefault, kMessagesMax));
  AE_ASSIGN(const auto turn, query.number("turn"));
  const auto* as = query.find("as");
  if (as != nullptr && *as != "sent") return fail(Code::input_invalid, "\"as\" must be sent");
  if (as == nullptr && turn) return fail(Code::input_invalid, "\"turn\" needs \"as=sent\"");
  if (as != nullptr) wanted.sent_turn = turn.value_or(0);
  return wanted;
}

}  // namespace

void Api::conversation(ContextPtr ctx) {
  auto query = conversation_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  read_steps(ctx, [this, alive = alive_.watch(), ctx,
                   query = *std::move(query)](const StepsReadPtr& read) {
    if (!alive) return;
    const engine::State& state = read->snapshot.state;
    auto found = engine::Conversation::of(state, query.step);
    if (!found) return ctx->refuse(found.error());
    if (query.sent_turn) {
      const auto turn = found->turn(*query.sent_turn);
      if (!turn) return ctx->refuse(turn.error());
      const engine::IndexedStep* indexed = read->index->find((*turn)->id);
      // Without a try in this job, its own state tells why there is no request.
      const bool was_sent = indexed != nullptr && indexed->first_try_seq > 0;
      const std::uint64_t seq = was_sent ? indexed->first_try_seq : state.seq;
      return history_.state_at(
          state.job, seq,
          [ctx, read, step = (*turn)->id](Result<runtime::History::PastState> then) {
            if (!then) return ctx->refuse(then.error());
            if (!then->state) return ctx->refuse(missing_job_error(ctx->id));
            const auto request = engine::sent_request_view(*then->state, step.text);
            if (!request) return ctx->refuse(request.error());
            ctx->answer(200, *request);
          });
    }
    const auto conversation = std::make_shared<engine::Conversation>(*std::move(found));
    history_.events(state.job, conversation->seqs(*read->index, query.after, query.limit),
                    [ctx, read, conversation, query](Result<std::vector<Event>> events) {
                      if (!events) return ctx->refuse(events.error());
                      engine::TraceRecord record;
                      for (const Event& event : *events) record.add(event);
                      ctx->answer(
                          200, conversation->page(record, *read->index, query.after, query.limit));
                    });
  });
}

}  // namespace ae::api
