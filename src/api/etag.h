// ETags of views of a job, and of bodies.
//
// The tag of a view names the view, the job's last event and what else the body shows. A tag is
// weak: a compressed body has the same tag. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/time.h"
#include "store/store.h"

namespace ae::api {

// `view`: the request and the facts that the body depends on besides the job's row. "" while a
// timer or an expiry of the job is due at `now`: the body may change without an event.
std::string etag_of(std::string_view view, const store::JobRow& row, Instant now);

// The tag of a body that is made without a read, from its text.
std::string etag_of_text(std::string_view text);

// Does the header If-None-Match contain the tag? The comparison is weak (RFC 9110, 8.8.3.2).
bool matches_etag(std::string_view if_none_match, std::string_view etag);

}  // namespace ae::api
