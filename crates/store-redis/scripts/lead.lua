-- Leads, or goes on leading, unless somebody else does. ARGV: 1 the node, 2 milliseconds.
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
