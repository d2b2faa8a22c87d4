-- Carries out what an entry of the log does in one tag: once, and in the order of the log.
--
-- KEYS: 1 what was applied last, then those of the changes.
-- ARGV: 1 the entry, 2 the entry before it that touched the tag, then the changes.
-- Answers {1} if it was applied now, {0} if before, {2, last} if the tag is elsewhere.

local last = redis.call('GET', KEYS[1]) or ''
if last == ARGV[1] then
    return {0}
end
if last ~= ARGV[2] then
    return {2, last}
end
run(1, 3)
redis.call('SET', KEYS[1], ARGV[1])
return {1}
