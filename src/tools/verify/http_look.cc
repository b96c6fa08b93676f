#include "tools/verify/http_look.h"

#include <algorithm>
#include <utility>

#include "net/outbound.h"

namespace ae::tools {
namespace {

constexpr std::size_t kAnswerMax = 4u << 20;  // of a body that is read

Seen judge(const HttpLook::How& how, const net::HttpAnswer& answer) {
  using net::HttpPhase;
  const bool enough =
      answer.phase == HttpPhase::complete || (!how.body && answer.too_large && answer.status > 0);
  if (!enough) {
    return {.unreachable = answer.error.empty() ? "no whole answer" : answer.error, .value = {}};
  }
  if (answer.status == 404 || answer.status == 410) {
    return {.unreachable = {}, .absent = true, .value = {}};
  }
  if (answer.status < 200 || answer.status > 299) {
    return {.unreachable = "it answered with status " + std::to_string(answer.status), .value = {}};
  }
  return how.see(answer);
}

}  // namespace

void HttpLook::look(Value change, async::Done<Sighting> done) {
  const auto cannot = [&](const Error& error) {
    needs_.loop.post([done = std::move(done), reason = error.message]() mutable {
      done({.sight = Sight::unreachable, .expected = {}, .observed = {}, .reason = reason});
    });
  };
  std::vector<UsedSecret> used;
  auto url = how_.url(change);
  if (!url) return cannot(url.error());
  auto headers = how_.headers.fill(needs_.secrets, used);
  if (!headers) return cannot(headers.error());
  for (const net::HttpHeader& fixed : how_.fixed) {
    if (!net::find_header(*headers, fixed.name)) headers->push_back(fixed);
  }
  needs_.secrets.add_known(used);
  net::HttpCall call;
  call.url = *std::move(url);
  call.headers = *std::move(headers);
  call.public_only = !how_.host_is_written && !net::names_host(how_.allow, call.url);
  call.fresh = call.public_only;
  call.total_timeout = how_.timeout;
  call.connect_timeout = std::min<Duration>(how_.timeout, call.connect_timeout);
  call.answer_max = kAnswerMax;
  // `how` is copied: the answer may come when this is gone.
  needs_.client.start(std::move(call),
                      [how = how_, change = std::move(change), used = std::move(used),
                       done = std::move(done)](net::HttpAnswer answer) mutable {
                        // Before it is shortened: half of a secret would be found no more.
                        Seen seen = judge(how, answer);
                        seen.value = scrub(seen.value, used);
                        seen.unreachable = scrub(seen.unreachable, used);
                        done(compare(change, how.recorded, seen, how.same));
                      });
}

}  // namespace ae::tools
