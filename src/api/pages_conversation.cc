// Pages of a conversation: the messages between a step and its model.
#include <utility>

#include "api/operations.h"
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

// The messages of a page, and their events.
struct SelectedMessages {
  std::shared_ptr<const engine::Conversation> conversation;
  std::vector<std::uint64_t> seqs;
};

// The request of a turn: the state after event `seq` has what was sent.
struct SentTurn {
  StepId step;
  std::uint64_t seq = 0;
};

void answer_sent_turn(ApiContext& api, const RequestPtr& ctx, const StepsRead& read,
                      const std::string& step, std::uint64_t turn) {
  compute_from<SentTurn>(
      api, read,
      [step, turn](const engine::IndexedState& from) -> Result<SentTurn> {
        AE_ASSIGN(const engine::Conversation found, engine::Conversation::of(from.tree(), step));
        AE_ASSIGN(const engine::Step* const sent, found.turn(turn));
        const engine::IndexedStep* indexed = from.index().find(sent->id);
        // Without a try in this job, its own state tells why there is no request.
        const bool was_sent = indexed != nullptr && indexed->first_try_seq > 0;
        return SentTurn{sent->id, was_sent ? indexed->first_try_seq : from.state().seq};
      },
      [&api, ctx, read](Result<SentTurn> sent) {
        if (!sent) return ctx->refuse(sent.error());
        api.history.state_at(
            read.indexed->state().job, sent->seq, ctx->request.disconnected,
            [&api, alive = api.alive.watch(), ctx, read,
             id = sent->step](Result<runtime::History::PastState> past) {
              if (!alive) return;
              if (!past) return ctx->refuse(past.error());
              if (!past->state) return ctx->refuse(missing_job_error(ctx->id));
              compute_from<ApiResponse>(
                  api, read,
                  [state = *std::move(past->state), id,
                   maker = read.maker](const engine::IndexedState&) -> Result<ApiResponse> {
                    AE_ASSIGN(Value request, engine::sent_request_view(state, id.text));
                    return maker.make(std::move(request));
                  },
                  respond(ctx));
            });
      });
}

}  // namespace

void operations::conversation(ApiContext& api, RequestPtr ctx) {
  auto query = conversation_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  read_steps(api, ctx, [&api, ctx, query = *std::move(query)](const StepsRead& read) {
    if (query.sent_turn) return answer_sent_turn(api, ctx, read, query.step, *query.sent_turn);
    compute_from<SelectedMessages>(
        api, read,
        [query](const engine::IndexedState& from) -> Result<SelectedMessages> {
          AE_ASSIGN(engine::Conversation found, engine::Conversation::of(from.tree(), query.step));
          auto seqs = found.seqs(from.index(), query.after, query.limit);
          return SelectedMessages{std::make_shared<const engine::Conversation>(std::move(found)),
                                  std::move(seqs)};
        },
        [&api, ctx, read, query](Result<SelectedMessages> selected) {
          if (!selected) return ctx->refuse(selected.error());
          api.history.events(
              read.indexed->state().job, std::move(selected->seqs), ctx->request.disconnected,
              [&api, alive = api.alive.watch(), ctx, read, query,
               conversation = selected->conversation](Result<std::vector<Event>> events) {
                if (!alive) return;
                if (!events) return ctx->refuse(events.error());
                compute_from<ApiResponse>(
                    api, read,
                    [conversation, query, events = *std::move(events),
                     maker = read.maker](const engine::IndexedState& from) -> Result<ApiResponse> {
                      engine::TraceRecord record;
                      for (const Event& event : events) record.add(event);
                      return maker.make(
                          conversation->page(record, from.index(), query.after, query.limit));
                    },
                    respond(ctx));
              });
        });
  });
}

}  // namespace ae::api
