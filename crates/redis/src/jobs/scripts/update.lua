-- Carries out a batch of operations on jobs of one partition that are there already. It runs also when Redis is out of memory.
-- ARGV, from the third on, for each job: operation, id, token, first number, second number.
-- Returns a digit for each job: 1 where it was done, 0 where the job was not as the operation wants it.
--
-- Starts and dones, which every job needs, are carried out together: a few commands for all of a batch.
if is_repeated then return last_reply end
if is_late then return refuse() end

local answers = {}

-- Starts or dones that are yet to be carried out, and which operations of the batch they are.
local which, ids, tokens, leases, places = nil, {}, {}, {}, {}

local function carry_out()
  if not which then return end
  local set = which == 'start' and claimed or running
  local states = call('HMGET', state, unpack(ids))
  local ends = call('ZMSCORE', set, unpack(ids))
  local held, scores, after = {}, {}, {}
  for n, id in ipairs(ids) do
    local owner, attempts, at = parse(states[n])
    local till = ends[n]
    if owner == tokens[n] and till and tonumber(till) > now then
      held[#held + 1] = id
      answers[places[n]] = '1'
      if which == 'start' then
        scores[#scores + 1] = exact(now + leases[n])
        scores[#scores + 1] = id
        after[#after + 1] = id
        after[#after + 1] = owner .. ' ' .. exact(attempts + 1) .. ' ' .. at
      end
    else
      answers[places[n]] = '0'
    end
  end
  if held[1] then
    if which == 'start' then
      call('ZADD', running, unpack(scores))
      call('HSET', state, unpack(after))
      call('ZREM', claimed, unpack(held))
    else
      call('ZREM', running, unpack(held))
      call('HDEL', state, unpack(held))
      call('HDEL', payload, unpack(held))
    end
  end
  which, ids, tokens, leases, places = nil, {}, {}, {}, {}
end

-- Every other operation, of which a batch has few.
local wake = false
local other

local function other_operations()
  local function wait_again(from, id, attempts, at)
    wait(from, id, attempts, at)
    -- Workers look again when there is another first one.
    if call('ZRANGE', due, 0, 0)[1] == id then wake = true end
  end

  local function forget(from, id)
    call('ZREM', from, id)
    call('HDEL', state, id)
    call('HDEL', payload, id)
  end

  -- From where each takes a job, and what it does to it.
  local operations = {
    -- Of who holds the job, under a lease that lasts. The first takes back a start that was never seen.
    unstart = { is_holders = true, from = { running }, act = function(from, id, attempts, at)
      wait_again(from, id, exact(attempts - 1), at)
    end },
    release = { is_holders = true, from = { claimed }, act = wait_again },
    renew = { is_holders = true, from = { running, claimed }, act = function(from, id, _, _, lease)
      call('ZADD', from, exact(now + lease), id)
    end },
    bury = { is_holders = true, from = { running }, act = function(from, id, attempts, at)
      bury(from, id, attempts, at)
    end },
    -- Of a worker that could not fetch the payload.
    unfetched = { is_holders = true, from = { claimed }, act = function(from, id, attempts, at, _, most)
      fail(from, id, attempts, at, most,
        'its payload of ' .. call('HSTRLEN', payload, id) .. ' bytes could not be fetched in time')
    end },
    retry = { is_holders = true, from = { running }, act = function(from, id, attempts, at, delay, limit)
      if tonumber(attempts) >= limit then
        bury(from, id, attempts, at)
      else
        wait_again(from, id, attempts, exact(now + delay))
      end
    end },
    -- Of anybody.
    cancel = { from = { due, claimed }, act = forget },
    reschedule = { from = { due, claimed }, act = function(from, id, attempts, _, delay)
      wait_again(from, id, attempts, exact(now + delay))
    end },
    revive = { from = { dead }, act = function(from, id) wait_again(from, id, '0', exact(now)) end },
    purge = { from = { dead }, act = forget },
  }

  return function(name, id, token, first, second)
    local operation = operations[name]
    local owner, attempts, at = read(id)
    if operation.is_holders and owner ~= token then return false end
    for _, from in ipairs(operation.from) do
      local score = call('ZSCORE', from, id)
      if score and (not operation.is_holders or tonumber(score) > now) then
        operation.act(from, id, attempts, at, first, second)
        return true
      end
    end
    return false
  end
end

local place = 0
for at = 3, #ARGV, 5 do
  local operation, id, token = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  place = place + 1
  if operation == 'start' or operation == 'done' then
    if which ~= operation then carry_out() end
    which = operation
    local n = #ids + 1
    ids[n], tokens[n], leases[n], places[n] = id, token, ARGV[at + 3], place
  else
    -- In the order in which they were asked for.
    carry_out()
    other = other or other_operations()
    local done = other(operation, id, token, tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]))
    answers[place] = done and '1' or '0'
  end
end
carry_out()
local reply = table.concat(answers)
remember(reply)
if wake then call('PUBLISH', channel, '') end
return reply
